//! The few elements that answers of S3 have, parsed from bytes that a store made: no tree, no
//! entities of its own, and memory bounded by the answer.

/// The content of each element of that name that is not inside another of the same name.
pub(super) fn elements<'a>(xml: &'a str, name: &'a str) -> impl Iterator<Item = &'a str> {
    let (open, close) = (format!("<{name}>"), format!("</{name}>"));
    let mut rest = xml;
    std::iter::from_fn(move || {
        let begin = rest.find(&open)? + open.len();
        let length = rest.get(begin..)?.find(&close)?;
        let inner = rest.get(begin..begin + length)?;
        rest = rest.get(begin + length + close.len()..)?;
        Some(inner)
    })
}

/// The text of the first element of that name.
pub(super) fn text(xml: &str, name: &str) -> Option<String> {
    let inner = elements(xml, name).next()?;
    let mut text = String::with_capacity(inner.len());
    let mut rest = inner;
    while let Some(at) = rest.find('&') {
        text.push_str(rest.get(..at)?);
        let end = rest.get(at..)?.find(';')? + at;
        let entity = rest.get(at + 1..end)?;
        text.push(match entity {
            "amp" => '&',
            "lt" => '<',
            "gt" => '>',
            "quot" => '"',
            "apos" => '\'',
            _ => {
                let number = entity.strip_prefix('#')?;
                let code = match number.strip_prefix(['x', 'X']) {
                    Some(digits) => u32::from_str_radix(digits, 16).ok()?,
                    None => number.parse().ok()?,
                };
                char::from_u32(code)?
            }
        });
        rest = rest.get(end + 1..)?;
    }
    text.push_str(rest);
    Some(text)
}
