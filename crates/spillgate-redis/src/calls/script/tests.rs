//! Checks the assembled scripts: their size, Lua's limits for a function, the origin of lines, and that no
//! formula stands twice in the source.

use mlua::Lua;

use super::*;

#[test]
fn the_scripts_are_small() {
    for script in MARKED.both() {
        let bytes = script.text.len();
        assert!(bytes <= BYTES_MAX, "{bytes} bytes are sent after every flush");
    }
}

/// Lua allows 200 locals and 60 upvalues.
#[test]
fn no_function_comes_near_the_limits_of_lua() {
    for script in PLAIN.both() {
        let lua = Lua::new();
        let compiled = lua.load(&script.text).into_function().unwrap().dump(false);
        let mut functions = Vec::new();
        let mut dump = Dump { bytes: &compiled[HEADER_BYTES..] };
        dump.function(&mut functions);
        assert!(dump.bytes.is_empty() && functions.len() > 20, "{functions:?}");
        for function in functions {
            let (path, line) = script.origins[function.line.saturating_sub(1)];
            assert!(function.locals <= LOCALS_MAX, "{path}:{line}: {function:?}");
            assert!(function.upvalues <= UPVALUES_MAX, "{path}:{line}: {function:?}");
        }
    }
}

#[test]
fn each_formula_stands_once_in_the_source() {
    let sources = [&COMMON[..], &OF_DECISIONS, &OF_LEASES].concat();
    for (what, formula) in FORMULAS {
        let locations: Vec<&str> = sources
            .iter()
            .flat_map(|source| source.text.matches(formula).map(|_| source.path))
            .collect();
        assert_eq!(locations.len(), 1, "{what}: `{formula}` stands in {locations:?}");
    }
}

#[test]
fn an_error_of_a_server_names_the_line_of_the_source() {
    let weigh = |text: &str| {
        1 + text.lines().position(|line| line.starts_with("local function weigh")).unwrap()
    };
    let expected = weigh(include_str!("../../lua/algorithm/sliding_window.lua"));
    for script in [&MARKED, &PLAIN].into_iter().flat_map(Scripts::both) {
        let (number, sha) = (weigh(&script.text), &script.sha);
        for error in [
            format!(
                "ERR user_script:{number}: a nil value script: {sha}, on @user_script:{number}."
            ),
            format!("ERR Error running script (call to f_{sha}): @user_script:{number}: no"),
        ] {
            let expected = format!("{error} (lua/algorithm/sliding_window.lua:{expected})");
            assert_eq!(located(error), expected);
        }
    }
    for other in ["ERR user_script:1: of another script", "OOM command not allowed"] {
        assert_eq!(located(other.to_owned()), other);
    }
}

#[test]
fn algorithms_are_included_in_the_order_of_their_numbers() {
    let driver = include_str!("../../lua/check.lua");
    let (last, others) = Algorithm::ALL.split_last().expect("there are some");
    for algorithm in others {
        let name = algorithm.name().replace('-', "_");
        let number = algorithm.number();
        let branch = format!("algorithm == {number} then\n        -- @include {name}\n");
        assert!(driver.contains(&branch), "{branch}");
    }
    assert_eq!(usize::from(last.number()), Algorithm::ALL.len());
}

/// A function as compiled by Lua 5.1.
#[derive(Debug)]
struct Compiled {
    line: usize,
    upvalues: usize,
    /// The most locals in scope at once.
    locals: usize,
}

/// A compiled chunk of Lua 5.1, read from the front.
struct Dump<'b> {
    bytes: &'b [u8],
}

impl Dump<'_> {
    fn take(&mut self, count: usize) -> &[u8] {
        let (taken, rest) = self.bytes.split_at(count);
        self.bytes = rest;
        taken
    }

    fn byte(&mut self) -> usize {
        usize::from(self.take(1)[0])
    }

    fn int(&mut self) -> usize {
        u32::from_ne_bytes(self.take(4).try_into().unwrap()) as usize
    }

    fn string(&mut self) {
        let bytes = usize::from_ne_bytes(self.take(size_of::<usize>()).try_into().unwrap());
        self.take(bytes);
    }

    /// Reads a function and the functions in it.
    fn function(&mut self, functions: &mut Vec<Compiled>) {
        self.string();
        let line = self.int();
        self.int();
        let upvalues = self.byte();
        self.take(3);
        let instructions = self.int();
        self.take(4 * instructions);
        for _ in 0..self.int() {
            match self.byte() {
                1 => drop(self.byte()),
                3 => drop(self.take(8).len()),
                4 => self.string(),
                _ => {}
            }
        }
        for _ in 0..self.int() {
            self.function(functions);
        }
        let lines = self.int();
        self.take(4 * lines);
        let mut in_scope = vec![0_isize; instructions + 2];
        for _ in 0..self.int() {
            self.string();
            in_scope[self.int()] += 1;
            in_scope[self.int()] -= 1;
        }
        for _ in 0..self.int() {
            self.string();
        }
        let running = in_scope.iter().scan(0, |locals, change| {
            *locals += change;
            Some(*locals)
        });
        let locals = running.max().unwrap_or_default().unsigned_abs();
        functions.push(Compiled { line, upvalues, locals });
    }
}

/// The signature, the version, and the format of numbers.
const HEADER_BYTES: usize = 12;
const BYTES_MAX: usize = 80_000;
const LOCALS_MAX: usize = 150;
const UPVALUES_MAX: usize = 50;

const FORMULAS: [(&str, &str); 17] = [
    ("what drained", "parts % n"),
    ("a short record of a bucket", "'>I2I6I4'"),
    ("a long record of a bucket", "'>I2I6I4I6I4I4'"),
    ("which records are long", "count >= 65536"),
    ("what is above a boundary's 48 low bits", "high + 1, low - 281474976710656"),
    ("the us until a bucket is empty", "used * n - drained"),
    ("when a low begins again", "5 * lowest"),
    ("the refund that a low proves", "mark - marked"),
    ("a level less another", "used - by_used"),
    ("all or none; coalescing", "room % cost"),
    ("the life of a key", "until_us + step_us / 2"),
    ("the step of a life", "step_us = below_us / 64"),
    ("the body of a log", "'>I2I6I6I7I7I2I2I2'"),
    ("a unit of a log", "'>I6', 6"),
    ("the size of a log's ring", "needed * 4 + 32"),
    ("a new reservation", "'>I1I7I7c16c8I1'"),
    ("an ended reservation", "string.sub(record, 2, 31)"),
];
