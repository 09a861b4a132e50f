//! The future of a response: first the check, if a store is needed, then the service or a denial.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http::{Request, Response};
use pin_project_lite::pin_project;
use tower_service::Service;

use super::{Admission, ResponseBody, Unsettled};
use crate::headers::Fields;

pin_project! {
    /// The future of a service behind a [`RateLimitLayer`](super::RateLimitLayer).
    ///
    /// If it is dropped during a call to the store, a task of its own finishes the check and
    /// releases its permits.
    pub struct ResponseFuture<S, B, F> {
        #[pin]
        stage: Stage<S, B, F>,
    }
}

/// The check on a store, with the request's head. The body waits elsewhere.
type Checking = Pin<Box<dyn Future<Output = (Admission, Request<()>)> + Send>>;

/// A check that is finished even if its client disconnects during the call to the store.
///
/// The store may have granted permits or opened a record. Only the answer has the receipt that
/// releases or settles them.
struct FinishedCheck {
    /// `None` once it is answered.
    unanswered: Option<Checking>,
    /// Whether it was polled. Before that, nothing has been sent.
    polled: bool,
}

pin_project! {
    // How far the request is: its check, the service's answer, or the denial.
    #[project = StageProjection]
    enum Stage<S, B, F> {
        Asked { check: FinishedCheck, body: Option<B>, inner: S },
        Passed { #[pin] answer: F, fields: Option<Fields>, unsettled: Option<Box<Unsettled>> },
        Denied { response: Option<Response<Vec<u8>>> },
    }
}

impl<S, B, F> ResponseFuture<S, B, F> {
    pub(crate) fn asked(checking: Checking, body: B, inner: S) -> ResponseFuture<S, B, F> {
        let check = FinishedCheck { unanswered: Some(checking), polled: false };
        ResponseFuture { stage: Stage::Asked { check, body: Some(body), inner } }
    }

    pub(crate) fn passed(
        answer: F,
        fields: Fields,
        unsettled: Option<Box<Unsettled>>,
    ) -> ResponseFuture<S, B, F> {
        ResponseFuture { stage: Stage::Passed { answer, fields: Some(fields), unsettled } }
    }

    pub(crate) fn denied(response: Response<Vec<u8>>) -> ResponseFuture<S, B, F> {
        ResponseFuture { stage: Stage::Denied { response: Some(response) } }
    }
}

impl<S, B, R, F, E> Future for ResponseFuture<S, B, F>
where
    S: Service<Request<B>, Response = Response<R>, Error = E, Future = F>,
    F: Future<Output = Result<Response<R>, E>>,
{
    type Output = Result<Response<ResponseBody<R>>, E>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut stage = self.project().stage;
        loop {
            let next = match stage.as_mut().project() {
                StageProjection::Asked { check, body, inner } => {
                    let (admission, request) = ready!(check.poll(context));
                    let body = body.take().expect("left at the first answer of the store");
                    match admission {
                        Admission::Passes(fields, unsettled) => Stage::Passed {
                            answer: inner.call(request.map(|()| body)),
                            fields: Some(fields),
                            unsettled,
                        },
                        Admission::Denied(response) => Stage::Denied { response: Some(response) },
                    }
                }
                StageProjection::Passed { answer, fields, unsettled } => {
                    let mut response = ready!(answer.poll(context))?;
                    let fields = fields.take().unwrap_or_default();
                    if !is_redirect(&response) {
                        fields.add_to(response.headers_mut());
                    }
                    let Some(unsettled) = unsettled.take() else {
                        return Poll::Ready(Ok(
                            response.map(|body| ResponseBody::served(body, None))
                        ));
                    };
                    return Poll::Ready(Ok(settled_after(response, unsettled)));
                }
                StageProjection::Denied { response } => {
                    let response = response.take().expect("a future is not polled after its end");
                    return Poll::Ready(Ok(response.map(ResponseBody::denial)));
                }
            };
            stage.set(next);
        }
    }
}

impl FinishedCheck {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<(Admission, Request<()>)> {
        self.polled = true;
        // Taken out, so that a check that panics is not polled again on drop.
        let mut checking = self.unanswered.take().expect("a check is not polled after its answer");
        let answer = checking.as_mut().poll(context);
        if answer.is_pending() {
            self.unanswered = Some(checking);
        }
        answer
    }
}

impl Drop for FinishedCheck {
    fn drop(&mut self) {
        let Some(checking) = self.unanswered.take().filter(|_| self.polled) else { return };
        // Without a runtime the process is about to end, and permits and records expire by
        // themselves.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            // Dropping an admission releases its permits or settles its record.
            runtime.spawn(async move { drop(checking.await) });
        }
    }
}

/// Makes the end of the response's body settle the reservation.
#[inline(never)]
fn settled_after<R>(
    response: Response<R>,
    mut unsettled: Box<Unsettled>,
) -> Response<ResponseBody<R>> {
    let (head, body) = response.into_parts();
    unsettled.answered(&head);
    Response::from_parts(head, ResponseBody::served(body, Some(unsettled)))
}

/// Returns whether the response is a redirect. With rate-limit fields a client might wait before it
/// follows.
fn is_redirect<R>(response: &Response<R>) -> bool {
    response.status().is_redirection() && response.status() != http::StatusCode::NOT_MODIFIED
}

impl<S, B, F> fmt::Debug for ResponseFuture<S, B, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
