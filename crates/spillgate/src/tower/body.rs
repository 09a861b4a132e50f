//! The body of a response: the service's, or that of a denial.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use super::Unsettled;

pin_project! {
    /// The body of a response: the service's unchanged, or that of a denial.
    #[derive(Debug)]
    pub struct ResponseBody<B> {
        #[pin]
        kind: Kind<B>,
    }
}

pin_project! {
    #[derive(Debug)]
    #[project = KindProjection]
    enum Kind<B> {
        Served { #[pin] body: B, unsettled: Option<Box<Unsettled>> },
        // `None` once it was sent, or if it is empty.
        Denial { bytes: Option<Vec<u8>> },
    }
}

impl<B> ResponseBody<B> {
    pub(crate) fn served(body: B, unsettled: Option<Box<Unsettled>>) -> ResponseBody<B> {
        ResponseBody { kind: Kind::Served { body, unsettled } }
    }

    pub(crate) fn denial(bytes: Vec<u8>) -> ResponseBody<B> {
        ResponseBody { kind: Kind::Denial { bytes: Some(bytes).filter(|bytes| !bytes.is_empty()) } }
    }
}

impl<B: Body> Body for ResponseBody<B>
where
    B::Data: From<Vec<u8>>,
{
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        match self.project().kind.project() {
            KindProjection::Served { mut body, unsettled } => {
                if let Some(held) = unsettled {
                    held.announced(body.size_hint().exact());
                }
                let frame = ready!(body.as_mut().poll_frame(context));
                if let Some(held) = unsettled {
                    let is_last = match &frame {
                        Some(Ok(sent)) => {
                            held.sent(sent.data_ref().map_or(0, bytes::Buf::remaining));
                            // No frame follows trailers. Some bodies end with their last frame,
                            // without another poll.
                            sent.is_trailers() || body.is_end_stream()
                        }
                        Some(Err(_)) | None => true,
                    };
                    match &frame {
                        Some(Err(_)) => held.failed(),
                        _ if is_last => held.ended(),
                        _ => {}
                    }
                    if is_last {
                        *unsettled = None;
                    }
                }
                Poll::Ready(frame)
            }
            KindProjection::Denial { bytes } => {
                Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes.into()))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Served { body, unsettled } => {
                let is_over = body.is_end_stream();
                // A server that learns of the end here drops the body without another poll. It does
                // so too if no byte is left to send.
                if let Some(held) = unsettled
                    && (is_over || body.size_hint().exact() == Some(0))
                {
                    held.ended();
                }
                is_over
            }
            Kind::Denial { bytes } => bytes.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Served { body, .. } => body.size_hint(),
            Kind::Denial { bytes } => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
        }
    }
}
