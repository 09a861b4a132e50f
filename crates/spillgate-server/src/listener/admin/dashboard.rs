//! The dashboard: plain files that send requests to this listener only. The files are public; the data that they show
//! needs the token of the admin API.

use axum::Router;
use axum::body::Body;
use axum::response::Response;
use axum::routing::get;
use hyper::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, HeaderValue, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS,
};

/// Path, type and contents of each file.
const FILES: [(&str, &str, &str); 30] = [
    ("/", "text/html; charset=utf-8", include_str!("../../../dashboard/index.html")),
    ("/dashboard.css", "text/css; charset=utf-8", include_str!("../../../dashboard/dashboard.css")),
    ("/dashboard.svg", "image/svg+xml", include_str!("../../../dashboard/dashboard.svg")),
    ("/actions.js", JAVASCRIPT, include_str!("../../../dashboard/actions.js")),
    ("/addresses.js", JAVASCRIPT, include_str!("../../../dashboard/addresses.js")),
    ("/axis.js", JAVASCRIPT, include_str!("../../../dashboard/axis.js")),
    ("/change.js", JAVASCRIPT, include_str!("../../../dashboard/change.js")),
    ("/chart.js", JAVASCRIPT, include_str!("../../../dashboard/chart.js")),
    ("/dashboard.js", JAVASCRIPT, include_str!("../../../dashboard/dashboard.js")),
    ("/denied.js", JAVASCRIPT, include_str!("../../../dashboard/denied.js")),
    ("/dialogs.js", JAVASCRIPT, include_str!("../../../dashboard/dialogs.js")),
    ("/dom.js", JAVASCRIPT, include_str!("../../../dashboard/dom.js")),
    ("/fleet.js", JAVASCRIPT, include_str!("../../../dashboard/fleet.js")),
    ("/history.js", JAVASCRIPT, include_str!("../../../dashboard/history.js")),
    ("/live.js", JAVASCRIPT, include_str!("../../../dashboard/live.js")),
    ("/overrides.js", JAVASCRIPT, include_str!("../../../dashboard/overrides.js")),
    ("/overview.js", JAVASCRIPT, include_str!("../../../dashboard/overview.js")),
    ("/ranges.js", JAVASCRIPT, include_str!("../../../dashboard/ranges.js")),
    ("/role.js", JAVASCRIPT, include_str!("../../../dashboard/role.js")),
    ("/rule.js", JAVASCRIPT, include_str!("../../../dashboard/rule.js")),
    ("/rules.js", JAVASCRIPT, include_str!("../../../dashboard/rules.js")),
    ("/search.js", JAVASCRIPT, include_str!("../../../dashboard/search.js")),
    ("/server.js", JAVASCRIPT, include_str!("../../../dashboard/server.js")),
    ("/status.js", JAVASCRIPT, include_str!("../../../dashboard/status.js")),
    ("/store.js", JAVASCRIPT, include_str!("../../../dashboard/store.js")),
    ("/subject.js", JAVASCRIPT, include_str!("../../../dashboard/subject.js")),
    ("/subjects.js", JAVASCRIPT, include_str!("../../../dashboard/subjects.js")),
    ("/table.js", JAVASCRIPT, include_str!("../../../dashboard/table.js")),
    ("/timeline.js", JAVASCRIPT, include_str!("../../../dashboard/timeline.js")),
    ("/words.js", JAVASCRIPT, include_str!("../../../dashboard/words.js")),
];

/// Returns the routes of the files.
pub fn routes() -> Router {
    FILES.into_iter().fold(Router::new(), |routes, (path, kind, contents)| {
        routes.route(path, get(async move || file(kind, contents)))
    })
}

fn file(kind: &'static str, contents: &'static str) -> Response {
    let mut response = Response::new(Body::from(contents));
    let headers: [(HeaderName, &'static str); 5] = [
        (CONTENT_TYPE, kind),
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "no-referrer"),
        // After an upgrade the same path serves another version.
        (CACHE_CONTROL, "no-cache"),
    ];
    for (name, value) in headers {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

const JAVASCRIPT: &str = "text/javascript; charset=utf-8";

/// Allows only scripts, styles and images of this listener, and requests to it only. No page may frame the dashboard.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
    connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
