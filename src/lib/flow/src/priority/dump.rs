//! The tables under `/debug/api_priority_and_fairness/`: columns separated by a comma and padding.

use super::config::Distinguisher;
use super::levels::Levels;
use super::matching::FlowResource;
use ferrokube_apimachinery::time::rfc3339_micros;
use std::time::SystemTime;
use tokio::time::Instant;

impl Levels {
    /// A row per level.
    pub fn dump_levels(&self) -> String {
        let head = "PriorityLevelName ActiveQueues IsIdle IsQuiescing WaitingRequests ExecutingRequests DispatchedRequests RejectedRequests TimedoutRequests CancelledRequests";
        let mut rows = vec![head.split(' ').map(str::to_owned).collect()];
        for (name, level, is_quiescing) in self.entries() {
            let totals = level.totals();
            let active = level.queues().iter().filter(|queue| queue.waiting > 0).count();
            rows.push(vec![
                name,
                active.to_string(),
                level.is_idle().to_string(),
                is_quiescing.to_string(),
                totals.waiting.to_string(),
                totals.executing.to_string(),
                totals.dispatched.to_string(),
                totals.rejected.to_string(),
                "0".to_owned(),
                totals.cancelled.to_string(),
            ]);
        }
        table(&rows)
    }

    /// A row per active queue: idle ones have no state.
    pub fn dump_queues(&self) -> String {
        let head = "PriorityLevelName Index PendingRequests ExecutingRequests SeatsInUse NextDispatchR InitialSeatsSum MaxSeatsSum TotalWorkSum";
        let mut rows = vec![head.split(' ').map(str::to_owned).collect()];
        for (name, level, _) in self.entries() {
            rows.extend(level.queues().iter().map(|queue| {
                vec![
                    name.clone(),
                    queue.index.to_string(),
                    queue.waiting.to_string(),
                    queue.executing.to_string(),
                    queue.seats.to_string(),
                    format!("{:.8}ss", queue.next),
                    queue.seats_waiting.to_string(),
                    queue.seats_waiting.to_string(),
                    format!("{:.8}ss", queue.seats_waiting as f64 * 0.003),
                ]
            }));
        }
        table(&rows)
    }

    /// A row per running or waiting request, with its action if `with_details`.
    pub fn dump_requests(&self, with_details: bool) -> String {
        let head = "PriorityLevelName FlowSchemaName QueueIndex RequestIndexInQueue FlowDistingsher ArriveTime InitialSeats FinalSeats AdditionalLatency StartTime";
        let details = "UserName Verb APIPath Namespace Name APIVersion Resource SubResource";
        let mut names: Vec<String> = head.split(' ').map(str::to_owned).collect();
        if with_details {
            names.extend(details.split(' ').map(str::to_owned));
        }
        let mut rows = vec![names];
        let (now, wall) = (Instant::now(), SystemTime::now());
        let time = |then: Instant| rfc3339_micros(wall - now.saturating_duration_since(then));
        let number = |number: Option<String>| number.unwrap_or_else(|| "-1".to_owned());
        for (name, level, _) in self.entries() {
            for request in level.requests() {
                let resource = request.action.resource().unwrap_or_default();
                let flow = match request.distinguisher {
                    Distinguisher::User => request.user.as_str(),
                    Distinguisher::Namespace => resource.namespace,
                    Distinguisher::None => "",
                };
                let mut row = vec![
                    name.clone(),
                    request.schema.to_string(),
                    number(request.queue.map(|queue| queue.to_string())),
                    number(request.place.map(|place| place.to_string())),
                    flow.to_owned(),
                    time(request.arrived),
                    request.seats.to_string(),
                    "0".to_owned(),
                    "0s".to_owned(),
                    request.started.map_or_else(|| NEVER.to_owned(), time),
                ];
                if with_details {
                    let FlowResource { group, version, plural, subresource, namespace, name } =
                        resource;
                    let slash = if group.is_empty() { "" } else { "/" };
                    let version = format!("{group}{slash}{version}");
                    let (verb, path) = (request.action.verb(), request.action.path());
                    let what = [verb, path, namespace, name, &version, plural, subresource];
                    row.push(request.user);
                    row.extend(what.map(str::to_owned));
                }
                rows.push(row);
            }
        }
        table(&rows)
    }
}

/// Start time of a request that has not started.
const NEVER: &str = "0001-01-01T00:00:00Z";

/// Every column but the last ends with a comma, and is as wide as its widest cell.
fn table(rows: &[Vec<String>]) -> String {
    let mut widths: Vec<usize> = Vec::new();
    for row in rows {
        for (column, cell) in row.iter().enumerate() {
            let width = (cell.chars().count() + 2).max(8);
            match widths.get_mut(column) {
                Some(widest) => *widest = width.max(*widest),
                None => widths.push(width),
            }
        }
    }
    let mut out = String::new();
    for row in rows {
        for (column, cell) in row.iter().enumerate() {
            // A client's words must not forge rows.
            let cell: String =
                cell.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect();
            if column + 1 == row.len() {
                out.push_str(&cell);
            } else {
                out.push_str(&format!("{:width$}", cell + ",", width = widths[column]));
            }
        }
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_cannot_be_forged() {
        let rows = [["a", "b", "c"], ["long-name", "x\ny", "z"]];
        let rows = rows.map(|row| row.map(str::to_owned).to_vec());
        assert_eq!(table(&rows), "a,         b,      c\nlong-name, x y,    z\n");
    }
}
