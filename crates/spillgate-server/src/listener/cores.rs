//! One thread for each core, each with a runtime of its own. A connection stays on its thread: the thread that reads a
//! request answers it. In memory it wakes no other.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use tokio::net::TcpStream;
use tokio::runtime::{Builder, Handle};
use tokio::task::AbortHandle;

/// The threads that serve connections. Clones share them; they live as long as the process.
#[derive(Clone)]
pub(crate) struct Cores {
    handles: Arc<[Handle]>,
    next: Arc<AtomicUsize>,
}

impl Cores {
    /// Starts one thread for each core that this process may use.
    pub(crate) fn start() -> io::Result<Cores> {
        let count = thread::available_parallelism().map_or(1, usize::from);
        let handles = (0..count).map(|core| start_one(&format!("core-{core}")));
        Ok(Cores { handles: handles.collect::<Result<_, _>>()?, next: Arc::default() })
    }

    /// Starts one thread for operators and scrapers, so that no answer to them takes time of a thread that decides.
    pub(crate) fn start_for_admin() -> io::Result<Cores> {
        Ok(Cores { handles: Arc::new([start_one("admin")?]), next: Arc::default() })
    }

    /// Serves a connection on the next core in turn, and returns a handle that aborts it; `None` for a dead socket.
    pub fn serve<A: Future<Output = ()> + Send>(
        &self,
        stream: TcpStream,
        answer: impl FnOnce(TcpStream) -> A + Send + 'static,
    ) -> Option<AbortHandle> {
        // A socket is registered with the runtime that waits for it, so it must move to the core's runtime.
        let stream = stream.into_std().ok()?;
        let core = self.next.fetch_add(1, Ordering::Relaxed) % self.handles.len();
        let task = self.handles[core].spawn(async move {
            if let Ok(stream) = TcpStream::from_std(stream) {
                answer(stream).await;
            }
        });
        Some(task.abort_handle())
    }

    /// Returns the number of threads.
    pub(crate) fn count(&self) -> usize {
        self.handles.len()
    }
}

fn start_one(name: &str) -> io::Result<Handle> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let handle = runtime.handle().clone();
    let forever = move || runtime.block_on(std::future::pending::<()>());
    thread::Builder::new().name(name.to_owned()).spawn(forever)?;
    Ok(handle)
}
