//! Runs each topology under each fault, on each installed server. Three processes check all the time, and
//! their admissions are held against the limits plus the bound that the fault allows.
//!
//! `./evidence campaign` runs all of it and keeps the results; the gate runs one cell.

use std::path::PathBuf;

use spillgate_core::time::boottime_us;
use spillgate_testkit::RedisServer;

mod bounds;
mod fault;
mod fleet;
mod report;
mod rig;

use bounds::Limits;
use fault::{Fault, Shape};
use fleet::Fleet;
use report::{Report, Row};
use rig::Rig;

#[test]
fn no_fault_of_a_topology_exceeds_a_limit_by_more_than_the_stated_bound() {
    let file = std::env::var_os(FILE).map(PathBuf::from);
    let cells = cells(std::env::var(SCOPE).as_deref().ok());
    let mut report = Report::read(file.as_deref());
    for (number, cell) in cells.iter().enumerate() {
        if !report.has(&cell.name()) {
            let rows = cell.play();
            println!("{}/{}: {}", number + 1, cells.len(), summary(cell, &rows));
            report.add(&rows);
        }
    }
    let names: Vec<String> = cells.iter().map(Cell::name).collect();
    println!("{}", report.tables(&names));
    let violations = report.violations(&names);
    assert!(violations.is_empty(), "{} violations:\n{}", violations.len(), violations.join("\n"));
}

/// One combination of server version, topology and fault.
struct Cell {
    version: usize,
    shape: Shape,
    fault: Fault,
}

/// All cells, a few for `./evidence quick`, or one for the gate.
fn cells(scope: Option<&str>) -> Vec<Cell> {
    let versions = RedisServer::versions().len();
    let all = |version: usize| {
        let of = move |shape: Shape| shape.faults().iter().map(move |fault| (shape, *fault));
        Shape::ALL.into_iter().flat_map(of).map(move |(shape, fault)| Cell {
            version,
            shape,
            fault,
        })
    };
    match scope {
        None => vec![Cell { version: 0, shape: Shape::Single, fault: Fault::Killed }],
        Some("small") => all(0).filter(|cell| SMALL.contains(&(cell.shape, cell.fault))).collect(),
        Some("whole") => (0..versions).flat_map(all).filter(Cell::can_be).collect(),
        Some(other) => panic!("{SCOPE} is small or whole, and not {other:?}"),
    }
}

impl Cell {
    /// Debian's own server hangs under libfaketime.
    fn can_be(&self) -> bool {
        self.version > 0 || !self.fault.is_of_clocks()
    }

    fn name(&self) -> String {
        let version = RedisServer::versions()[self.version].name;
        format!("{version}\t{}\t{}", self.shape.name(), self.fault.name())
    }

    /// Returns the admissions of three processes before, under and after the fault, limit by limit. Returns
    /// none if a program is missing.
    fn play(&self) -> Vec<Row> {
        let version = &RedisServer::versions()[self.version];
        let mut rig = match Rig::start(version, self.shape, self.fault) {
            Ok(rig) => rig,
            Err(missing) => {
                println!("left out: {}: {missing}", self.name());
                return Vec::new();
            }
        };
        let mut fleet = Fleet::start(&rig.store(), self.fault.timeout());
        std::thread::sleep(fault::BEFORE);
        let began_us = boottime_us();
        let two_us = rig.cause(self.fault, &mut fleet);
        if two_us > 0 {
            println!(
                "{}: two primaries or rings may decide for {} ms",
                self.name(),
                two_us / 1_000
            );
        }
        std::thread::sleep(fault::AFTER);
        let history = fleet.end();
        let wall_ahead_us = fleet::wall_ahead_us();
        let overshoot_bound = |limits: &Limits| {
            let mixed = history.mixed_periods(limits, wall_ahead_us);
            self.fault.overshoot_bound(self.shape, limits, mixed, two_us)
        };
        let of = |limits: &Limits| Row {
            cell: self.name(),
            limit: limits.name(),
            admitted: history.admitted(limits),
            local: history.admitted_locally(limits),
            allowed: limits.allowed(),
            most_over: overshoot_bound(limits),
            over: history.over(limits),
            locked_out_us: history.locked_out_us(limits, began_us),
            locked_out_most_us: limits.locked_out_most_us(),
            unused: self.fault == Fault::None && !history.uses(limits),
        };
        Limits::all().iter().map(of).collect()
    }
}

fn summary(cell: &Cell, rows: &[Row]) -> String {
    let over = rows.iter().map(|row| row.over).max().unwrap_or(0);
    let most = rows.iter().map(|row| row.most_over).max().unwrap_or(0);
    let locked_out_ms = rows.iter().filter_map(|row| row.locked_out_us).max().unwrap_or(0) / 1_000;
    let name = cell.name().replace('\t', ", ");
    format!(
        "{name}: at most {over} over the limit, {most} allowed; locked out for {locked_out_ms} ms at most"
    )
}

const SCOPE: &str = "SPILLGATE_CAMPAIGN";
/// The file that keeps the results.
const FILE: &str = "SPILLGATE_CAMPAIGN_FILE";
const SMALL: [(Shape, Fault); 9] = [
    (Shape::Single, Fault::None),
    (Shape::Single, Fault::BlackHoled),
    (Shape::Single, Fault::Flushed),
    (Shape::Single, Fault::ProcessesKilled),
    (Shape::Sentinels, Fault::HandedOver),
    (Shape::Cluster, Fault::HandedOver),
    (Shape::Cluster, Fault::SlotsMove),
    (Shape::Ring, Fault::Killed),
    (Shape::Ring, Fault::Grows),
];
