//! Values of a policy that is built in code, and the tree that a policy file with them becomes.

use std::collections::BTreeMap;
use std::fmt::Display;

use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

/// A value of the policy file.
#[derive(Clone, Debug)]
pub enum Value {
    Text(String),
    /// In the form of TOML, from which `toml` makes its numbers.
    Number(String),
    Truth(bool),
    List(Vec<Value>),
    Table(Fields),
}

/// The fields of a table.
pub type Fields = BTreeMap<String, Value>;

impl Value {
    pub fn text(text: impl Into<String>) -> Value {
        Value::Text(text.into())
    }

    pub fn number(number: impl Display) -> Value {
        // Rust writes `NaN`, and TOML `nan`.
        Value::Number(number.to_string().to_lowercase())
    }

    pub fn texts(texts: impl IntoIterator<Item: Into<String>>) -> Value {
        Value::List(texts.into_iter().map(Value::text).collect())
    }

    pub fn table<'n>(fields: impl IntoIterator<Item = (&'n str, Value)>) -> Value {
        Value::Table(fields.into_iter().map(|(field, value)| (field.to_owned(), value)).collect())
    }

    /// Makes a table whose values are all texts.
    pub fn members<N: Into<String>, V: Into<String>>(
        members: impl IntoIterator<Item = (N, V)>,
    ) -> Value {
        let members = members.into_iter();
        Value::Table(members.map(|(name, value)| (name.into(), Value::text(value))).collect())
    }

    fn tree(&self) -> Spanned<DeValue<'_>> {
        without_place(match self {
            Value::Text(text) => DeValue::String(text.as_str().into()),
            Value::Number(number) => {
                DeValue::parse(number).expect("TOML has every number of Rust").into_inner()
            }
            Value::Truth(truth) => DeValue::Boolean(*truth),
            Value::List(items) => DeValue::Array(items.iter().map(Value::tree).collect()),
            Value::Table(members) => DeValue::Table(tree_of(members)),
        })
    }
}

/// Returns the table that a file with these fields has.
pub fn tree_of(fields: &Fields) -> DeTable<'_> {
    fields
        .iter()
        .map(|(field, value)| (without_place(DeString::from(field.as_str())), value.tree()))
        .collect()
}

fn without_place<T>(value: T) -> Spanned<T> {
    Spanned::new(0..0, value)
}
