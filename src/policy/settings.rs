//! A file of settings, read as strictly as a policy: for the sidecar's own configuration.
//!
//! Everything that the policies' own reader refuses is refused here too (names given twice, aliases,
//! tags, several documents), and every value keeps its place. What comes out is flat: one [`Leaf`]
//! for each value, under the dotted name of its place.

use super::diagnostic::{self, Source};
use super::tree::{Data, Format, Node, Span, read};

/// One value of a file of settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leaf {
    /// Its name: the names of the mappings around it and its own, with dots.
    pub name: String,
    /// The line of its name, from 1.
    pub line: usize,
    /// The column of its name, from 1, in characters.
    pub column: usize,
    /// The value.
    pub value: LeafValue,
}

/// What a [`Leaf`] is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeafValue {
    /// A mapping without members, or nothing.
    Empty,
    /// A list of scalars, each as its text.
    List(Vec<String>),
    /// A list that holds something else.
    Nested,
    /// Text, a number or a truth value, as its text.
    Scalar(String),
}

/// Why a file of settings cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable {
    /// The line, from 1.
    pub line: usize,
    /// The column, from 1, in characters.
    pub column: usize,
    /// What is wrong.
    pub message: String,
    /// What to do.
    pub help: Option<&'static str>,
}

/// Reads a file of settings: JSON if its name ends in `.json`, else YAML. An empty file has none.
///
/// # Errors
///
/// The first fault of its syntax; a file whose whole is not a mapping.
pub fn leaves(name: &str, text: &str) -> Result<Vec<Leaf>, Unreadable> {
    let source = Source::new(name, text);
    let unreadable = |span: Span, message: String, help| {
        let (line, column) = source.position(span.start);
        Unreadable { line, column, message, help }
    };
    let root = read(text, Format::of(name))
        .map_err(|fault| unreadable(fault.span, fault.message, fault.help))?;
    match &root.data {
        Data::Mapping(_) | Data::Null => {}
        Data::Bool(_) | Data::Number(_) | Data::Sequence(_) | Data::String(_) => {
            let message = format!("the file is {}, not a mapping", root.kind_name());
            return Err(unreadable(root.span, message, None));
        }
    }
    let mut leaves = Vec::new();
    // A stack of our own: depth is bounded by the tree, and order by the last reversal.
    let mut open: Vec<(String, Span, &Node)> = vec![(String::new(), Span::default(), &root)];
    while let Some((name, span, node)) = open.pop() {
        if !node.entries().is_empty() {
            for entry in node.entries().iter().rev() {
                let dot = if name.is_empty() { "" } else { "." };
                open.push((format!("{name}{dot}{}", entry.name), entry.span, &entry.value));
            }
        } else if !name.is_empty() {
            let (line, column) = source.position(span.start);
            leaves.push(Leaf { name, line, column, value: value(node) });
        }
    }
    Ok(leaves)
}

/// The known name that a misspelt one most likely means, if one is near.
pub fn nearest<'k>(name: &str, known: &[&'k str]) -> Option<&'k str> {
    diagnostic::nearest(name, known)
}

fn value(node: &Node) -> LeafValue {
    match &node.data {
        Data::Mapping(_) | Data::Null => LeafValue::Empty,
        Data::Sequence(elements) => {
            let texts: Option<Vec<String>> = elements.iter().map(scalar).collect();
            texts.map_or(LeafValue::Nested, LeafValue::List)
        }
        Data::Bool(_) | Data::Number(_) | Data::String(_) => {
            scalar(node).map_or(LeafValue::Nested, LeafValue::Scalar)
        }
    }
}

fn scalar(node: &Node) -> Option<String> {
    match &node.data {
        Data::Bool(value) => Some(value.to_string()),
        Data::Number(text) | Data::String(text) => Some(text.clone()),
        Data::Mapping(_) | Data::Null | Data::Sequence(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_stand_under_dotted_names_with_their_places() {
        let text = "listen: 127.0.0.1:1\nmcp:\n  paths: [/mcp, /b]\nlimits:\ndrain: {min_ms: 5}\n";

        let leaves = leaves("c.yaml", text).unwrap();

        let seen: Vec<_> =
            leaves.iter().map(|l| (l.name.as_str(), l.line, l.column, l.value.clone())).collect();
        let list = LeafValue::List(vec!["/mcp".to_owned(), "/b".to_owned()]);
        assert_eq!(
            seen,
            [
                ("listen", 1, 1, LeafValue::Scalar("127.0.0.1:1".to_owned())),
                ("mcp.paths", 3, 3, list),
                ("limits", 4, 1, LeafValue::Empty),
                ("drain.min_ms", 5, 9, LeafValue::Scalar("5".to_owned())),
            ]
        );
    }

    #[test]
    fn what_cannot_be_read_says_where() {
        let twice = leaves("c.yaml", "a: 1\na: 2\n").unwrap_err();
        assert_eq!((twice.line, twice.column), (2, 1));
        assert!(leaves("c.yaml", "- a\n").unwrap_err().message.contains("a list"));
        assert_eq!(leaves("c.yaml", ""), Ok(Vec::new()));
        assert_eq!(leaves("c.yaml", "a: [[1]]\n").unwrap()[0].value, LeafValue::Nested);
    }
}
