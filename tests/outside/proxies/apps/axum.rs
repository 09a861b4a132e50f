//! An application with three routes, and one for all paths below a prefix, for paths.py. The last argument is its port.

use axum::{Router, routing::get};

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let port = std::env::args().next_back().unwrap().parse().unwrap();
    let routes = ["/login", "/a/login", "/gpt:go", "/under/{*rest}"];
    let app = routes.iter().fold(Router::new(), |app, path| app.route(path, get("login")));
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", port)).await.unwrap();
    axum::serve(listener, app).await.unwrap();
}
