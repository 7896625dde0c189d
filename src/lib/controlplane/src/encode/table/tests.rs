//! Tests of Tables.

use super::*;
use crate::encode::slices::tests::entry;
use ferrokube_apimachinery::document::json;
use ferrokube_resource::Column;
use std::time::Duration;

const CREATED: &str = "2024-01-02T02:59:05Z";

fn served() -> Served {
    let definitions = ferrokube_resources::definitions(ferrokube_resources::tables());
    let definition =
        definitions.into_iter().find(|definition| definition.plural == "configmaps").unwrap();
    Served { definition, version: 0 }
}

fn entries(count: u64) -> Vec<Arc<Entry>> {
    let head = |n: u64| {
        format!(
            "{{\"kind\":\"ConfigMap\",\"apiVersion\":\"v1\",\"metadata\":{{\"name\":\"c{n}\",\"creationTimestamp\":\"{CREATED}\""
        )
    };
    (0..count).map(|n| Arc::new(entry(1000 + n, &head(n), "},\"data\":{\"k\":\"v\"}}"))).collect()
}

fn table(
    served: &Served,
    chunks: &ChunkCache,
    entries: &[Arc<Entry>],
    (include, age): (Include, u64),
) -> Vec<u8> {
    let now = time::parse_rfc3339(CREATED).unwrap() + Duration::from_secs(age);
    Table::new(served, "v1", include, now).stream("{}", chunks, entries.to_vec()).collect()
}

#[test]
fn cached_rows_show_current_ages() {
    let served = served();
    for count in [0, 1, 40, 1000] {
        let (chunks, entries) = (ChunkCache::default(), entries(count));
        for (seconds, age) in [(5, "5s"), (6, "6s"), (3600, "60m")] {
            let bytes = table(&served, &chunks, &entries, (Include::Metadata, seconds));
            let value: Value = json_codec::read_value(&bytes).unwrap();
            let rows = value["rows"].as_array().unwrap();
            assert_eq!(rows.len() as u64, count);
            for (n, row) in rows.iter().enumerate() {
                assert_eq!(row["cells"], json!([format!("c{n}"), 1, age]));
                assert_eq!(row["object"]["metadata"]["name"], format!("c{n}"));
            }
            assert_eq!(
                bytes,
                table(&served, &ChunkCache::default(), &entries, (Include::Metadata, seconds)),
                "like a fresh encoding"
            );
        }
        assert_eq!(chunks.is_empty(), count < FEW_ROWS as u64, "{count}");
    }
}

/// A row of columns over an object whose spec is `spec`.
fn row(paths: &[&str], spec: &Value) -> Vec<Value> {
    let column = |path: &&str| Column {
        name: "c".into(),
        kind: "string".into(),
        format: "".into(),
        description: "".into(),
        priority: 0,
        json_path: (*path).into(),
    };
    let columns: Columns = paths.iter().map(column).collect();
    let spec = String::from_utf8(json_codec::to_vec(spec)).unwrap();
    let entry = entry(
        1,
        "{\"kind\":\"ConfigMap\",\"apiVersion\":\"v1\",\"metadata\":{\"name\":\"a\"",
        &format!("}},\"spec\":{spec}}}"),
    );
    let mut table = Table::with(&served(), &columns, "v1", Include::None, SystemTime::now());
    let bytes = table.frames("{}", false, &Object::Stored(Arc::new(entry))).concat();
    let value: Value = json_codec::read_value(&bytes).unwrap();
    value["rows"][0]["cells"].as_array().unwrap().iter().cloned().collect()
}

#[test]
fn fault_41_a_row_is_bounded_whatever_its_columns() {
    let spec = json!({"a": "x".repeat(50_000), "l": vec![1; 30_000], "s": "short"});
    let cells = row(
        &[".spec.s", ".spec.a", ".spec.l", ".spec", ".spec.a", ".spec.s", ".spec.l[0]"].repeat(40),
        &spec,
    );
    let length: usize = cells.iter().filter_map(Value::as_str).map(str::len).sum();
    assert!(length <= ROW_BYTES + cells.len() * TOO_LONG.len(), "{length}");
    let texts: Vec<_> = cells.iter().take(4).map(|cell| cell.as_str().unwrap()).collect();
    assert!(
        texts[0] == "short"
            && texts[1].len() == 50_000
            && texts[2] == TOO_LONG
            && texts[3] == TOO_LONG
    );
    assert!(
        cells[4].as_str().is_some_and(|text| text.len() < 16_000 && text.starts_with("xxx")),
        "what is left"
    );
}

#[test]
fn fault_41_the_columns_of_a_row_share_their_steps() {
    let spec = json!({"l": vec![json!({"z": 1}); 15_000]});
    let paths = vec![".spec.l[?(@.z==2)]"; 300];
    let (cells, steps) = ferrokube_apimachinery::work::counted(|| row(&paths, &spec));
    assert!(cells.len() == 300 && steps < 20 * MAX_NODES as u64, "{steps}");
}

#[test]
fn many_columns_of_a_large_object_equal_those_of_few() {
    let spec = json!({"a": {"b": "x"}, "text": "y".repeat(200_000), "n": 5, "t": true});
    let paths = [".spec.a.b", ".metadata.name", ".spec.n", ".spec.t", ".kind", ".spec.none.below"];
    let want: Vec<_> = paths.iter().flat_map(|path| row(&[path], &spec)).collect();
    assert_eq!(row(&paths, &spec), want);
    assert_eq!(want[0], json!("x"));
}

#[test]
fn tables_share_long_definitions_of_columns() {
    let column = |at: usize| Column {
        name: format!("c{at}").into(),
        kind: "string".into(),
        format: "".into(),
        description: "d".repeat(1200).into(),
        priority: 0,
        json_path: ".spec.l[?(@.z==2)]".into(),
    };
    let (served, chunks) = (served(), ChunkCache::default());
    let table =
        |columns: &Columns| Table::with(&served, columns, "v1", Include::None, SystemTime::now());
    let columns: Columns = (0..900).map(column).collect();
    assert!(columns.cost() >= columns.definitions().len() / 2);
    let shared = columns.definitions().as_ptr();
    let object = Object::Stored(entries(1).remove(0));
    for frames in [table(&columns).empty("{}"), table(&columns).frames("{}", true, &object)] {
        assert_eq!(frames[1].as_ptr(), shared);
        let value: Value = json_codec::read_value(&frames.concat()).unwrap();
        assert_eq!(value["columnDefinitions"].as_array().unwrap().len(), 900);
    }
    let mut stream = table(&columns).stream("{}", &chunks, entries(2));
    assert!(!stream.is_cheap());
    stream.fill().unwrap();
    assert_eq!(stream.fill().unwrap().into_bytes().as_ptr(), shared);
    let again = table(&columns).columns.sources().as_ptr();
    assert_eq!(again, columns.sources().as_ptr(), "parsed once");

    let few: Columns = (0..3).map(column).collect();
    assert_eq!(few.cost(), 0);
    let [opening, definitions, _] = table(&few).empty("{}");
    assert!(opening.is_empty() && definitions.is_empty(), "one frame");
}

#[test]
fn frames_fill_a_write() {
    let (served, chunks) = (served(), ChunkCache::default());
    for _ in 0..3 {
        let mut stream = Table::new(&served, "v1", Include::Metadata, SystemTime::now()).stream(
            "{}",
            &chunks,
            entries(3000),
        );
        let mut sizes = Vec::new();
        while let Some(frame) = stream.fill() {
            sizes.push(frame.into_bytes().len());
        }
        assert!(
            sizes.len() > 5
                && sizes[..sizes.len() - 1]
                    .iter()
                    .all(|size| (FRAME_BYTES..WRITE_BYTES).contains(size)),
            "{sizes:?}"
        );
    }
}

#[test]
fn cached_rows_differ_by_what_they_include() {
    let (served, chunks, entries) = (served(), ChunkCache::default(), entries(100));
    for _ in 0..2 {
        for (include, kind) in [
            (Include::None, None),
            (Include::Metadata, Some("PartialObjectMetadata")),
            (Include::Object, Some("ConfigMap")),
        ] {
            let value: Value =
                json_codec::read_value(&table(&served, &chunks, &entries, (include, 5))).unwrap();
            assert_eq!(value["rows"][50]["object"]["kind"].as_str(), kind);
        }
    }
}
