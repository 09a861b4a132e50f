//! A simulated world for one thread. `tests/sim` runs fleets and faults in it from one seed. Its
//! time is tokio's, which a test can pause; its random numbers come from the seed; and the test
//! decides where addresses lead. It exists only with the feature `simulation`, which no product
//! enables.

use std::cell::RefCell;
use std::io;
use std::pin::Pin;

use tokio::io::DuplexStream;
use tokio::time::Instant;

/// Opens a connection to an address, given as host and port.
pub type Dial = Box<dyn Fn(&str, u16) -> Dialling>;

/// A connection that is being made.
pub type Dialling = Pin<Box<dyn Future<Output = io::Result<DuplexStream>> + Send>>;

struct World {
    began: Instant,
    began_us: u64,
    drawn: u64,
    dial: Dial,
}

thread_local! {
    static WORLD: RefCell<Option<World>> = const { RefCell::new(None) };
}

/// The presence of this thread in a world. It ends when this is dropped.
#[derive(Debug)]
pub struct Inside(());

/// Enters a world whose clocks show `now_us`. Call it on the runtime whose time the world uses.
pub fn enter(seed: u64, now_us: u64, dial: Dial) -> Inside {
    let world = World { began: Instant::now(), began_us: now_us, drawn: seed, dial };
    WORLD.with_borrow_mut(|place| *place = Some(world));
    spillgate_core::time::simulate(Some(self::now_us));
    Inside(())
}

impl Drop for Inside {
    fn drop(&mut self) {
        spillgate_core::time::simulate(None);
        let left = WORLD.with_borrow_mut(Option::take);
        drop(left);
    }
}

/// Returns the world's time in µs since the epoch.
fn now_us() -> u64 {
    WORLD.with_borrow(|world| {
        let world = world.as_ref().expect("the clock is set from entering to leaving the world");
        let since_us = u64::try_from(world.began.elapsed().as_micros()).unwrap_or(u64::MAX);
        world.began_us.saturating_add(since_us)
    })
}

/// Returns the world's next random number.
pub fn random() -> Option<u64> {
    WORLD.with_borrow_mut(|world| {
        let world = world.as_mut()?;
        // SplitMix64: any seed is as good as any other.
        world.drawn = world.drawn.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (world.drawn ^ (world.drawn >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        Some(mixed ^ (mixed >> 31))
    })
}

/// Opens a connection in the world.
pub(crate) fn dial(host: &str, port: u16) -> Option<Dialling> {
    WORLD.with_borrow(|world| Some((world.as_ref()?.dial)(host, port)))
}
