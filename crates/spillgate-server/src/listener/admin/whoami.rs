//! Names the holder of the token that a request shows, so that the dashboard offers only what its user may do.

use axum::Extension;
use axum::response::Response;
use serde::Serialize;

use super::tokens::Holder;
use crate::listener::http::answer;

#[derive(Serialize)]
struct HolderAnswer<'h> {
    name: &'h str,
    role: &'static str,
}

pub async fn show(Extension(Holder { name, role }): Extension<Holder>) -> Response {
    let holder = HolderAnswer { name: &name, role: role.name() };
    answer::json(&holder, answer::ANSWER_BYTES)
}
