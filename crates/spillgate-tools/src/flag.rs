//! Parsers of flags that several commands have.

/// Splits `NAME=VALUE` at its first equals sign.
///
/// # Errors
///
/// If the text has no equals sign; the error shows an example.
pub fn attribute(text: &str) -> Result<(String, String), String> {
    let (name, value) =
        text.split_once('=').ok_or("write NAME=VALUE, for example ip=203.0.113.7")?;
    Ok((name.to_owned(), value.to_owned()))
}

/// Parses a whole number.
///
/// # Errors
///
/// If the text is none; the error shows an example.
pub fn whole_number(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| "write a whole number such as 20".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attribute_name_ends_at_the_first_equals_sign() {
        assert_eq!(attribute("query=a=b"), Ok(("query".to_owned(), "a=b".to_owned())));
        assert!(attribute("ip").is_err());
    }

    #[test]
    fn a_number_that_is_none_gets_an_example() {
        assert_eq!(whole_number("20"), Ok(20));
        assert!(whole_number("x").unwrap_err().contains("write a whole number"));
    }
}
