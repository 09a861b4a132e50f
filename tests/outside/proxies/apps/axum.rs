//! An application with two routes, for paths.py. The last argument is its port.

use axum::{Router, routing::get};

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let port = std::env::args().next_back().unwrap().parse().unwrap();
    let app = Router::new().route("/login", get("login")).route("/a/login", get("login"));
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", port)).await.unwrap();
    axum::serve(listener, app).await.unwrap();
}
