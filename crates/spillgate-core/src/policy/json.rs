//! Writes values of the policy file as JSON.

use toml::de::DeValue;

/// Returns a value as JSON. Dates become texts, since JSON has none.
///
/// # Errors
/// The problem of a value that JSON cannot hold, with the remedy.
pub fn of_value(value: &DeValue<'_>) -> Result<String, String> {
    let mut json = String::new();
    write_value(value, 0, &mut json)?;
    Ok(json)
}

/// Returns an object. The values are JSON already.
pub fn object(members: &[(Box<str>, Box<str>)]) -> String {
    let mut json = String::from("{");
    for (position, (name, value)) in members.iter().enumerate() {
        if position > 0 {
            json.push(',');
        }
        write_text(name, &mut json);
        json.push(':');
        json.push_str(value);
    }
    json.push('}');
    json
}

/// `depth` bounds the recursion. The parser bounds it too, but at a depth that a small stack does not hold.
fn write_value(value: &DeValue<'_>, depth: usize, json: &mut String) -> Result<(), String> {
    if depth > DEPTH_MAX {
        return Err(format!("values are nested more than {DEPTH_MAX} deep; make them flatter"));
    }
    match value {
        DeValue::String(text) => write_text(text, json),
        DeValue::Datetime(instant) => write_text(&instant.to_string(), json),
        DeValue::Boolean(truth) => json.push_str(if *truth { "true" } else { "false" }),
        DeValue::Integer(digits) => {
            let number = i64::from_str_radix(digits.as_str(), digits.radix())
                .map_err(|_| format!("{digits} is too large a number; write it as a string"))?;
            json.push_str(&number.to_string());
        }
        DeValue::Float(number) => {
            let number = number.as_str();
            if number.ends_with("inf") || number.ends_with("nan") {
                return Err(format!("{number} is not a number in JSON; write it as a string"));
            }
            json.push_str(number.trim_start_matches('+'));
        }
        DeValue::Array(items) => {
            return write_list('[', ']', items, json, |item, json| {
                write_value(item.get_ref(), depth + 1, json)
            });
        }
        DeValue::Table(members) => {
            return write_list('{', '}', members, json, |(name, value), json| {
                write_text(name.get_ref(), json);
                json.push(':');
                write_value(value.get_ref(), depth + 1, json)
            });
        }
    }
    Ok(())
}

fn write_list<I>(
    open: char,
    close: char,
    items: impl IntoIterator<Item = I>,
    json: &mut String,
    write: impl Fn(I, &mut String) -> Result<(), String>,
) -> Result<(), String> {
    json.push(open);
    for (position, item) in items.into_iter().enumerate() {
        if position > 0 {
            json.push(',');
        }
        write(item, json)?;
    }
    json.push(close);
    Ok(())
}

fn write_text(text: &str, json: &mut String) {
    json.push('"');
    for character in text.chars() {
        match character {
            '"' | '\\' => json.extend(['\\', character]),
            control if control < ' ' => json.push_str(&format!("\\u{:04x}", u32::from(control))),
            other => json.push(other),
        }
    }
    json.push('"');
}

/// The deepest nesting of lists and tables.
const DEPTH_MAX: usize = 16;
