//! The API server in process, without sockets: requests in, responses out.

mod chain;
mod discovery;
mod health;
mod identity;
mod lists;
mod objects;
mod support;
mod watches;
