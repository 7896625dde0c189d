//! Messages that clients, tests and people match on: those of a real server, word for word.

use crate::support::{CONFIGMAPS, TestServer};
use ferrokube_apimachinery::document::{Value, json};

const TEXTS: &str = include_str!("texts.tsv");

#[tokio::test]
async fn messages_are_those_of_a_real_server() {
    let server = TestServer::new().await;
    let object = json!({"metadata": {"name": "i"}, "immutable": true, "data": {"a": "b"}});
    assert_eq!(server.send("POST", CONFIGMAPS, &[], object.to_string()).await.code, 201);
    let mut wrong = Vec::new();
    for row in TEXTS.lines().filter(|line| !line.starts_with('#')) {
        let [method, path, media_type, body, code, message] =
            row.split('\t').collect::<Vec<_>>().try_into().expect("six cells");
        let headers = [("content-type", media_type)];
        let headers = if media_type.is_empty() { &[][..] } else { &headers };
        let answer = server.send(method, path, headers, body.to_owned()).await;
        let expected: Value = ferrokube_apimachinery::json::read_value(message.as_bytes()).unwrap();
        if answer.code.to_string() != code || answer.json()["message"] != expected {
            wrong.push(format!("{method} {path} {body}\n  {}\n  {row}", answer.text()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
