//! Runs scripts as Redis does: Lua 5.1 with `redis.call`, `cmsgpack` and `struct`, as far as our scripts use
//! them.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use mlua::{Function, Lua, MultiValue, Table, Value};
use spillgate_testkit::Reply;

use super::keyspace::{Words, score_text};
use super::program::{Packed, unpacked};

/// A separate Lua, with the scripts that it has compiled.
pub(crate) struct Host {
    lua: Lua,
    compiled: RefCell<HashMap<String, Function>>,
    running: Rc<RefCell<Option<Running>>>,
}

/// The context of a running script: the executor of its commands, and the error that ended it.
struct Running {
    execute: Box<dyn FnMut(&Words) -> Reply>,
    error: Option<String>,
}

impl Host {
    pub(crate) fn new() -> Host {
        let lua = Lua::new();
        let running = Rc::new(RefCell::new(None));
        prepare(&lua, &running).expect("functions in a table");
        Host { lua, compiled: RefCell::default(), running }
    }

    /// Runs a script. Its commands go to `execute`.
    pub(crate) fn run(
        &self,
        sha: &str,
        text: &str,
        keys: &[Vec<u8>],
        arguments: &[Vec<u8>],
        execute: Box<dyn FnMut(&Words) -> Reply>,
    ) -> Reply {
        let function = match self.function(sha, text) {
            Ok(function) => function,
            Err(error) => return Reply::Error(format!("ERR Error compiling script: {error}")),
        };
        let words = |words: &[Vec<u8>]| {
            let words = words.iter().map(|word| self.lua.create_string(word).expect("memory"));
            self.lua.create_sequence_from(words).expect("memory")
        };
        let globals = self.lua.globals();
        globals.raw_set("KEYS", words(keys)).expect("a table");
        globals.raw_set("ARGV", words(arguments)).expect("a table");
        *self.running.borrow_mut() = Some(Running { execute, error: None });
        let answer = function.call::<Value>(());
        let ended = self.running.borrow_mut().take().expect("put there above");
        match (answer, ended.error) {
            (Ok(value), _) => reply(&value),
            (Err(_), Some(error)) => {
                Reply::Error(format!("{error} script: {sha}, on @user_script."))
            }
            (Err(error), None) => {
                Reply::Error(format!("ERR {error} script: {sha}, on @user_script."))
            }
        }
    }

    fn function(&self, sha: &str, text: &str) -> mlua::Result<Function> {
        if let Some(known) = self.compiled.borrow().get(sha) {
            return Ok(known.clone());
        }
        // Lua does not know the shebang line.
        let text = match text.strip_prefix("#!lua") {
            Some(marked) => marked.split_once('\n').map_or("", |(_, rest)| rest),
            None => text,
        };
        let function = self.lua.load(text).set_name("@user_script").into_function()?;
        self.compiled.borrow_mut().insert(sha.to_owned(), function.clone());
        Ok(function)
    }
}

fn prepare(lua: &Lua, running: &Rc<RefCell<Option<Running>>>) -> mlua::Result<()> {
    let redis = lua.create_table()?;
    for (name, raises) in [("call", true), ("pcall", false)] {
        let running = Rc::clone(running);
        let call = move |lua: &Lua, words: MultiValue| {
            let words: Words = words.iter().map(word).collect();
            let mut running = running.borrow_mut();
            let running = running.as_mut().expect("scripts run in `run` only");
            let answer = (running.execute)(&words);
            if let (Reply::Error(error), true) = (&answer, raises) {
                running.error = Some(error.clone());
                return Err(mlua::Error::runtime(error));
            }
            value(lua, &answer)
        };
        redis.raw_set(name, lua.create_function(call)?)?;
    }
    let globals = lua.globals();
    globals.raw_set("redis", redis)?;
    let cmsgpack = lua.create_table()?;
    let unpack = |lua: &Lua, packed: mlua::LuaString| table_of(lua, &packed.as_bytes());
    cmsgpack.raw_set("unpack", lua.create_function(unpack)?)?;
    globals.raw_set("cmsgpack", cmsgpack)?;
    let structs = lua.create_table()?;
    structs.raw_set("pack", lua.create_function(pack)?)?;
    structs.raw_set("unpack", lua.create_function(unpack_struct)?)?;
    globals.raw_set("struct", structs)
}

/// Converts an argument of a command.
fn word(value: &Value) -> Vec<u8> {
    match value {
        Value::String(text) => text.as_bytes().to_vec(),
        Value::Integer(number) => number.to_string().into_bytes(),
        Value::Number(number) => score_text(*number),
        other => panic!("an argument of a command is {other:?}"),
    }
}

/// Converts a reply to its Lua value.
fn value(lua: &Lua, reply: &Reply) -> mlua::Result<Value> {
    let table = |name: &str, text: &str| -> mlua::Result<Value> {
        let table = lua.create_table()?;
        table.raw_set(name, text)?;
        Ok(Value::Table(table))
    };
    Ok(match reply {
        Reply::Nil => Value::Boolean(false),
        Reply::Integer(number) => Value::Number(*number as f64),
        Reply::Bulk(bytes) => Value::String(lua.create_string(bytes)?),
        Reply::Status(text) => table("ok", text)?,
        Reply::Error(text) => table("err", text)?,
        Reply::Array(replies) => {
            let values: Vec<Value> =
                replies.iter().map(|reply| value(lua, reply)).collect::<Result<_, _>>()?;
            Value::Table(lua.create_sequence_from(values)?)
        }
    })
}

/// Converts a script's result to a reply: numbers are truncated, and a list ends at its first hole.
fn reply(value: &Value) -> Reply {
    match value {
        Value::Integer(number) => Reply::Integer(*number),
        Value::Number(number) => Reply::Integer(*number as i64),
        Value::String(text) => Reply::Bulk(text.as_bytes().to_vec()),
        Value::Boolean(true) => Reply::Integer(1),
        Value::Table(table) => reply_of_table(table),
        _ => Reply::Nil,
    }
}

fn reply_of_table(table: &Table) -> Reply {
    if let Ok(Some(text)) = table.raw_get::<Option<String>>("ok") {
        return Reply::Status(text);
    }
    if let Ok(Some(text)) = table.raw_get::<Option<String>>("err") {
        return Reply::Error(text);
    }
    let values = (1..).map_while(|place| match table.raw_get::<Value>(place) {
        Ok(Value::Nil) | Err(_) => None,
        Ok(value) => Some(reply(&value)),
    });
    Reply::Array(values.collect())
}

/// Decodes a msgpack array of numbers and short strings into a table.
fn table_of(lua: &Lua, packed: &[u8]) -> mlua::Result<Table> {
    let elements = unpacked(packed).ok_or_else(|| mlua::Error::runtime("no such msgpack"))?;
    let table = lua.create_table()?;
    for (place, element) in (1..).zip(elements) {
        match element {
            Packed::Number(number) => table.raw_set(place, number as f64)?,
            Packed::Text(text) => table.raw_set(place, lua.create_string(&text)?)?,
        }
    }
    Ok(table)
}

/// One field of a format: `I6` is a big-endian number of six bytes, `c5` five bytes.
struct Field {
    is_number: bool,
    width: usize,
}

fn fields(format: &[u8]) -> Vec<Field> {
    let format = std::str::from_utf8(format).expect("formats are ours");
    let fields = format.strip_prefix('>').expect("all of ours are big-endian");
    let kinds = fields.match_indices(['I', 'c']);
    let field = |(at, kind): (usize, &str)| {
        let digits: String = fields[at + 1..].chars().take_while(char::is_ascii_digit).collect();
        Field { is_number: kind == "I", width: digits.parse().expect("each has a width") }
    };
    kinds.map(field).collect()
}

fn pack(
    lua: &Lua,
    (format, values): (mlua::LuaString, MultiValue),
) -> mlua::Result<mlua::LuaString> {
    let mut packed = Vec::new();
    for (field, value) in fields(&format.as_bytes()).iter().zip(values.iter()) {
        if field.is_number {
            let number = match value {
                Value::Integer(number) => *number as u64,
                Value::Number(number) if *number < 0.0 => (*number as i64).cast_unsigned(),
                Value::Number(number) => *number as u64,
                other => return Err(mlua::Error::runtime(format!("no number: {other:?}"))),
            };
            packed.extend(&number.to_be_bytes()[8 - field.width..]);
        } else {
            packed.extend(word(value).get(..field.width).expect("a string too short"));
        }
    }
    lua.create_string(&packed)
}

/// Returns the fields, and the position after them.
fn unpack_struct(
    lua: &Lua,
    (format, text, from): (mlua::LuaString, mlua::LuaString, Option<f64>),
) -> mlua::Result<MultiValue> {
    let text = text.as_bytes();
    let mut at = from.unwrap_or(1.0) as usize - 1;
    let mut values = Vec::new();
    for field in fields(&format.as_bytes()) {
        let too_short = || mlua::Error::runtime("data string too short");
        let bytes = text.get(at..at + field.width).ok_or_else(too_short)?;
        at += field.width;
        values.push(if field.is_number {
            let number = bytes.iter().fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
            Value::Number(number as f64)
        } else {
            Value::String(lua.create_string(bytes)?)
        });
    }
    values.push(Value::Number((at + 1) as f64));
    Ok(values.into_iter().collect())
}
