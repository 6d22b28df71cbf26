//! Reading TOML (manifests, configuration) with errors that say which key, in which file and line,
//! and what would be right.
//!
//! A [`Table`] remembers every key that its reader asked for, so the list of known keys is not
//! written a second time: [`Table::finish`] refuses what nobody asked for and names the nearest
//! key that somebody did.

use std::cell::RefCell;
use std::fmt;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// What is wrong with a file.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum TomlErrorKind {
    /// Not TOML at all.
    Syntax {
        /// What the parser says.
        message: String,
    },
    /// A key that does not exist.
    UnknownKey {
        /// The key, with the tables it lies in (`instance_group.cors`).
        key: String,
        /// The nearest key that exists, if one is near.
        nearest: Option<String>,
        /// All keys that exist in that table.
        known: Vec<String>,
    },
    /// A value of the wrong type.
    WrongType {
        /// The key.
        key: String,
        /// The type that it must have.
        wanted: &'static str,
        /// The type that it has.
        got: &'static str,
    },
    /// A number out of its bounds.
    OutOfRange {
        /// The key.
        key: String,
        /// The value, as written.
        value: String,
        /// Smallest value.
        min: u64,
        /// Largest value.
        max: u64,
    },
    /// A key that must be there.
    Missing {
        /// The key.
        key: String,
        /// A key of that table that is near it, and that nobody has asked for.
        found: Option<String>,
    },
    /// A value of the right type that makes no sense here.
    Invalid {
        /// The key.
        key: String,
        /// What would be right.
        message: String,
    },
}

/// An error in a TOML file: where, and what would be right.
#[derive(Debug, Clone, PartialEq)]
pub struct TomlError {
    /// The file, as the user named it.
    pub file: String,
    /// The line, from 1.
    pub line: usize,
    /// What is wrong. Boxed, so that results stay small.
    pub kind: Box<TomlErrorKind>,
}

impl fmt::Display for TomlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, line {}: ", self.file, self.line)?;
        match &*self.kind {
            TomlErrorKind::Syntax { message } => write!(f, "not valid TOML: {message}"),
            TomlErrorKind::UnknownKey { key, nearest: Some(nearest), .. } => {
                write!(f, "unknown key `{key}`; did you mean `{nearest}`?")
            }
            TomlErrorKind::UnknownKey { key, nearest: None, known } => {
                write!(f, "unknown key `{key}`; known keys are {}", known.join(", "))
            }
            TomlErrorKind::WrongType { key, wanted, got } => {
                write!(f, "`{key}` must be {wanted}, but is {got}")
            }
            TomlErrorKind::OutOfRange { key, value, min, max } => {
                write!(f, "`{key}` is {value}; it must be within {min} to {max}")
            }
            TomlErrorKind::Missing { key, found: Some(found) } => {
                write!(f, "`{key}` is missing; is `{found}` meant to be it?")
            }
            TomlErrorKind::Missing { key, found: None } => write!(f, "`{key}` is missing"),
            TomlErrorKind::Invalid { key, message } => write!(f, "`{key}`: {message}"),
        }
    }
}

impl std::error::Error for TomlError {}

/// A parsed file.
pub struct Document<'i> {
    file: String,
    text: &'i str,
    root: Spanned<DeTable<'i>>,
}

impl<'i> Document<'i> {
    /// Parses `text`; `file` is what errors call it.
    ///
    /// # Errors
    /// `Syntax`, with the line.
    pub fn parse(file: &str, text: &'i str) -> Result<Self, TomlError> {
        match DeTable::parse(text) {
            Ok(root) => Ok(Document { file: file.to_string(), text, root }),
            Err(error) => Err(TomlError {
                file: file.to_string(),
                line: line_of(text, error.span().map_or(0, |s| s.start)),
                kind: Box::new(TomlErrorKind::Syntax { message: error.message().to_string() }),
            }),
        }
    }

    /// The outermost table.
    pub fn root(&self) -> Table<'_> {
        Table {
            file: &self.file,
            text: self.text,
            path: String::new(),
            table: self.root.get_ref(),
            start: 0,
            asked: RefCell::new(Vec::new()),
        }
    }
}

/// A table of a [`Document`], read key by key; an absent key reads as `None`.
pub struct Table<'d> {
    file: &'d str,
    text: &'d str,
    path: String,
    table: &'d DeTable<'d>,
    start: usize,
    asked: RefCell<Vec<String>>,
}

/// A value that may be one of several types; for keys with more than one spelling.
#[derive(Debug, Clone, PartialEq)]
pub enum Scalar {
    /// Text.
    Text(String),
    /// A list of texts.
    Texts(Vec<String>),
    /// A list of whole numbers.
    Integers(Vec<u64>),
}

impl<'d> Table<'d> {
    /// `key` with the tables it lies in.
    pub fn full_key(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_string() } else { format!("{}.{key}", self.path) }
    }

    /// The keys of this table, in the order of the file's parser; for tables whose keys are free.
    pub fn keys(&self) -> Vec<String> {
        self.table.iter().map(|(k, _)| k.get_ref().to_string()).collect()
    }

    fn get(&self, key: &str) -> Option<&'d Spanned<DeValue<'d>>> {
        self.asked.borrow_mut().push(key.to_string());
        self.table.iter().find(|(k, _)| k.get_ref() == key).map(|(_, v)| v)
    }

    fn error_at(&self, offset: usize, kind: TomlErrorKind) -> TomlError {
        TomlError {
            file: self.file.to_string(),
            line: line_of(self.text, offset),
            kind: Box::new(kind),
        }
    }

    fn wrong(&self, key: &str, value: &Spanned<DeValue<'_>>, wanted: &'static str) -> TomlError {
        let got = type_name(value.get_ref());
        let kind = TomlErrorKind::WrongType { key: self.full_key(key), wanted, got };
        self.error_at(value.span().start, kind)
    }

    /// An `Invalid` error at the line of `key` (at the table's line if it is absent).
    pub fn invalid(&self, key: &str, message: impl Into<String>) -> TomlError {
        let offset = self
            .table
            .iter()
            .find(|(k, _)| k.get_ref() == key)
            .map_or(self.start, |(k, _)| k.span().start);
        let kind = TomlErrorKind::Invalid { key: self.full_key(key), message: message.into() };
        self.error_at(offset, kind)
    }

    /// A `Missing` error: at this table's line, or at that of a key that looks as if it were meant.
    pub fn missing(&self, key: &str) -> TomlError {
        let asked = self.asked.borrow();
        let strangers = || self.table.keys().filter(|k| !asked.iter().any(|a| a == k.get_ref()));
        let found = nearest(key, strangers().map(|k| k.get_ref().as_ref()));
        let place = strangers().find(|k| found == Some(k.get_ref().as_ref()));
        let kind = TomlErrorKind::Missing {
            key: self.full_key(key),
            found: found.map(|found| self.full_key(found)),
        };
        self.error_at(place.map_or(self.start, |k| k.span().start), kind)
    }

    /// Text.
    ///
    /// # Errors
    /// `WrongType`.
    pub fn text(&self, key: &str) -> Result<Option<String>, TomlError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match value.get_ref() {
            DeValue::String(text) => Ok(Some(text.to_string())),
            _ => Err(self.wrong(key, value, "text")),
        }
    }

    /// True or false.
    ///
    /// # Errors
    /// `WrongType`.
    pub fn boolean(&self, key: &str) -> Result<Option<bool>, TomlError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match value.get_ref() {
            DeValue::Boolean(b) => Ok(Some(*b)),
            _ => Err(self.wrong(key, value, "true or false")),
        }
    }

    /// A whole number within `min` to `max`.
    ///
    /// # Errors
    /// `WrongType`, `OutOfRange` (with the value and both bounds).
    pub fn integer(&self, key: &str, min: u64, max: u64) -> Result<Option<u64>, TomlError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        self.integer_of(key, value, min, max).map(Some)
    }

    fn integer_of(
        &self,
        key: &str,
        value: &Spanned<DeValue<'_>>,
        min: u64,
        max: u64,
    ) -> Result<u64, TomlError> {
        let DeValue::Integer(written) = value.get_ref() else {
            return Err(self.wrong(key, value, "a whole number"));
        };
        u64::from_str_radix(written.as_str(), written.radix())
            .ok()
            .filter(|n| (min..=max).contains(n))
            .ok_or_else(|| {
                let kind = TomlErrorKind::OutOfRange {
                    key: self.full_key(key),
                    value: written.to_string(),
                    min,
                    max,
                };
                self.error_at(value.span().start, kind)
            })
    }

    /// A number, whole or not.
    ///
    /// # Errors
    /// `WrongType`.
    pub fn number(&self, key: &str) -> Result<Option<f64>, TomlError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let number = match value.get_ref() {
            DeValue::Integer(i) => {
                i64::from_str_radix(i.as_str(), i.radix()).ok().map(|i| i as f64)
            }
            DeValue::Float(f) => f.as_str().parse().ok(),
            _ => None,
        };
        number.map(Some).ok_or_else(|| self.wrong(key, value, "a number"))
    }

    /// A list of whole numbers, each within `min` to `max`.
    ///
    /// # Errors
    /// `WrongType`, `OutOfRange`.
    pub fn integers(&self, key: &str, min: u64, max: u64) -> Result<Option<Vec<u64>>, TomlError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let DeValue::Array(items) = value.get_ref() else {
            return Err(self.wrong(key, value, "a list of whole numbers"));
        };
        items
            .iter()
            .map(|item| self.integer_of(key, item, min, max))
            .collect::<Result<_, _>>()
            .map(Some)
    }

    /// A list of texts.
    ///
    /// # Errors
    /// `WrongType`.
    pub fn texts(&self, key: &str) -> Result<Option<Vec<String>>, TomlError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        self.texts_of(key, value).map(Some)
    }

    fn texts_of(&self, key: &str, value: &Spanned<DeValue<'_>>) -> Result<Vec<String>, TomlError> {
        let DeValue::Array(items) = value.get_ref() else {
            return Err(self.wrong(key, value, "a list of texts"));
        };
        items
            .iter()
            .map(|item| match item.get_ref() {
                DeValue::String(text) => Ok(text.to_string()),
                _ => Err(self.wrong(key, item, "a list of texts")),
            })
            .collect()
    }

    /// Text, or a list of texts.
    ///
    /// # Errors
    /// `WrongType`.
    pub fn text_or_texts(&self, key: &str) -> Result<Option<Scalar>, TomlError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match value.get_ref() {
            DeValue::String(text) => Ok(Some(Scalar::Text(text.to_string()))),
            DeValue::Array(_) => self.texts_of(key, value).map(|t| Some(Scalar::Texts(t))),
            _ => Err(self.wrong(key, value, "text or a list of texts")),
        }
    }

    /// Text, or a table.
    ///
    /// # Errors
    /// `WrongType`.
    pub fn text_or_table(&self, key: &str) -> Result<Option<Result<String, Table<'d>>>, TomlError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match value.get_ref() {
            DeValue::String(text) => Ok(Some(Ok(text.to_string()))),
            DeValue::Table(_) => {
                self.table_of(key, self.full_key(key), value).map(|t| Some(Err(t)))
            }
            _ => Err(self.wrong(key, value, "text or a table")),
        }
    }

    /// Text, or a list of whole numbers within `min` to `max`.
    ///
    /// # Errors
    /// `WrongType`, `OutOfRange`.
    pub fn text_or_integers(
        &self,
        key: &str,
        min: u64,
        max: u64,
    ) -> Result<Option<Scalar>, TomlError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match value.get_ref() {
            DeValue::String(text) => Ok(Some(Scalar::Text(text.to_string()))),
            DeValue::Array(items) => items
                .iter()
                .map(|item| self.integer_of(key, item, min, max))
                .collect::<Result<_, _>>()
                .map(|list| Some(Scalar::Integers(list))),
            _ => Err(self.wrong(key, value, "text or a list of whole numbers")),
        }
    }

    /// A table.
    ///
    /// # Errors
    /// `WrongType`.
    pub fn table(&self, key: &str) -> Result<Option<Table<'d>>, TomlError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        self.table_of(key, self.full_key(key), value).map(Some)
    }

    /// A list of tables.
    ///
    /// # Errors
    /// `WrongType`.
    pub fn tables(&self, key: &str) -> Result<Option<Vec<Table<'d>>>, TomlError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let DeValue::Array(items) = value.get_ref() else {
            return Err(self.wrong(key, value, "a list of tables"));
        };
        (0..items.len())
            .map(|i| self.table_of(key, format!("{}[{i}]", self.full_key(key)), &items[i]))
            .collect::<Result<_, _>>()
            .map(Some)
    }

    fn table_of(
        &self,
        key: &str,
        path: String,
        value: &'d Spanned<DeValue<'d>>,
    ) -> Result<Table<'d>, TomlError> {
        let DeValue::Table(table) = value.get_ref() else {
            return Err(self.wrong(key, value, "a table"));
        };
        Ok(Table {
            file: self.file,
            text: self.text,
            path,
            table,
            start: value.span().start,
            asked: RefCell::new(Vec::new()),
        })
    }

    /// Refuses keys that no reader asked for.
    ///
    /// # Errors
    /// `UnknownKey`, for the first one in the file.
    pub fn finish(&self) -> Result<(), TomlError> {
        let asked = self.asked.borrow();
        let stranger = self
            .table
            .iter()
            .filter(|(k, _)| !asked.iter().any(|a| a == k.get_ref()))
            .min_by_key(|(k, _)| k.span().start);
        let Some((key, _)) = stranger else { return Ok(()) };
        let nearest = nearest(key.get_ref(), asked.iter().map(String::as_str));
        let kind = TomlErrorKind::UnknownKey {
            key: self.full_key(key.get_ref()),
            nearest: nearest.map(|n| self.full_key(n)),
            known: asked.clone(),
        };
        Err(self.error_at(key.span().start, kind))
    }
}

/// The candidate with the fewest edits from `word`, if they are at most half of `word`.
pub fn nearest<'a>(word: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let word_len = word.chars().count();
    candidates
        .map(|c| (edits(word, c), c))
        .filter(|(d, c)| {
            *d <= (word_len / 2).max(1)
                || (word_len >= 4 && (c.starts_with(word) || word.starts_with(c)))
        })
        .min_by_key(|(d, _)| *d)
        .map(|(_, c)| c)
}

/// Insertions, removals and replacements from `a` to `b` (Levenshtein's distance), in characters.
fn edits(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, cb) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(ca != *cb);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

fn line_of(text: &str, offset: usize) -> usize {
    1 + text.bytes().take(offset).filter(|b| *b == b'\n').count()
}

fn type_name(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "text",
        DeValue::Integer(_) => "a whole number",
        DeValue::Float(_) => "a number with a fraction",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}

#[cfg(test)]
mod tests;
