//! The middleware: each call waits for room, and for as long as the API asks.

use async_trait::async_trait;
use http::Extensions;
use reqwest::{Request, Response};
use reqwest_middleware::{Error, Middleware, Next, Result};
use spillgate::tower::PaceLayer;

pub struct Paced(pub PaceLayer);

#[async_trait]
impl Middleware for Paced {
    async fn handle(
        &self,
        request: Request,
        extensions: &mut Extensions,
        next: Next<'_>,
    ) -> Result<Response> {
        let Paced(pace) = self;
        let call = http::Request::builder().method(request.method()).uri(request.url().as_str());
        let mut call = call.body(()).map_err(Error::middleware)?;
        call.headers_mut().clone_from(request.headers());

        pace.wait(&call).await.map_err(Error::middleware)?;
        let reply = next.run(request, extensions).await?;
        pace.note_reply(&call, reply.status(), reply.headers());
        Ok(reply)
    }
}
