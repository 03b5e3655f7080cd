//! Finds one string or integer in a JSON body without parsing the rest.
//!
//! A resumable machine over the body's bytes: O(n), constant memory, stops right after the value,
//! and returns to its caller every [`SCAN_STEP_BYTES`]. It reads what it passes only as far as it
//! must to know where it is, so a body that is broken *after* the value still has its key, and one
//! that is broken before it has none.
//!
//! The first member of a name decides, also when the name occurs again: the scan never looks
//! further for one that would fit better. Names and values compare after their escapes are undone.
//! A lone surrogate escape is kept as its three bytes (WTF-8), so that different events never get
//! equal keys by being repaired to the same replacement character.
//!
//! Pure; no input panics.

use super::path::JsonPath;
use super::scalar::{Scalar, Value};

/// Bytes looked at between two chances to yield: well under half a millisecond.
pub const SCAN_STEP_BYTES: usize = 32 * 1024;

/// Containers open at once; a body that nests deeper has no key.
pub const DEPTH_MAX: usize = 128;

/// Why there is no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Absence {
    /// The body is JSON as far as it was read, and nothing is at the path.
    NotFound,
    /// Neither a string nor an integer is there.
    WrongType,
    /// Not JSON.
    Malformed,
    /// Nested deeper than [`DEPTH_MAX`].
    TooDeep,
}

/// Where a scan stands after a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScanStep {
    /// Call again, with the same body.
    Pending,
    /// Done.
    Found(Scalar),
    /// Done.
    Absent(Absence),
}

/// A scan of one body.
pub struct JsonScan {
    path: JsonPath,
    at: usize,
    step: Step,
    /// One bit per open container, the innermost lowest: 1 is an object.
    open: u128,
    depth: usize,
    /// How many of the open containers, from the outside, lie on the path.
    matched_count: usize,
    /// The element an array on the path has come to.
    element: u64,
    value: Value,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// A value must come; the flag says that it is on the path.
    Value(bool),
    /// After `[`: a value or the end.
    ElementOrEnd,
    /// After `{`: a name or the end.
    NameOrEnd,
    /// After `,` in an object.
    Name,
    /// In a string.
    Text(Role, Escape),
    /// After a name; the flag says that it matched.
    Colon(bool),
    /// After a value.
    Next,
    /// In the integer at the end of the path.
    Integer,
    /// In a number or word off the path.
    Word,
}

/// What a string is to the scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// A name that is compared; `Some` while the bytes so far are those of the segment.
    Name(Option<usize>),
    /// A name in a container off the path.
    OtherName,
    /// The value at the path.
    Target,
    /// Any other value.
    Other,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Escape {
    None,
    /// After a backslash, with the high surrogate that stands right before it.
    Started(Option<u16>),
    /// In the digits of `\u`.
    Digits {
        value: u16,
        seen: u8,
        high: Option<u16>,
    },
    /// After a high surrogate: its other half may follow.
    High(u16),
}

/// Why the scan ends. Small, because it is part of what handling each byte returns.
#[derive(Clone, Copy)]
enum End {
    /// The value is complete.
    Found,
    Absent(Absence),
}

impl JsonScan {
    /// A scan for the value at `path`.
    pub fn new(path: JsonPath) -> JsonScan {
        JsonScan {
            path,
            at: 0,
            step: Step::Value(true),
            open: 0,
            depth: 0,
            matched_count: 0,
            element: 0,
            value: Value::default(),
        }
    }

    /// Looks at the next [`SCAN_STEP_BYTES`] of `body`, which must be the same each time.
    pub fn scan_step(&mut self, body: &[u8]) -> ScanStep {
        if self.at == 0 && body.starts_with(b"\xEF\xBB\xBF") {
            self.at = 3;
        }
        let end = body.len().min(self.at.saturating_add(SCAN_STEP_BYTES));
        while self.at < end {
            let run = self.plain_run(&body[self.at..end]);
            if run > 0 {
                self.at += run;
                continue;
            }
            let byte = body[self.at];
            self.at += 1;
            match self.take(byte) {
                Ok(()) => {}
                Err(End::Found) => return ScanStep::Found(self.value.take()),
                Err(End::Absent(absence)) => return ScanStep::Absent(absence),
            }
        }
        if self.at >= body.len() {
            ScanStep::Absent(Absence::Malformed)
        } else {
            ScanStep::Pending
        }
    }

    /// The whole scan at once: for short bodies and work off the request path.
    pub fn run(mut self, body: &[u8]) -> Result<Scalar, Absence> {
        loop {
            match self.scan_step(body) {
                ScanStep::Pending => {}
                ScanStep::Found(found) => return Ok(found),
                ScanStep::Absent(absence) => return Err(absence),
            }
        }
    }

    /// Takes the bytes ahead that change nothing but the text they are in: most of any body.
    fn plain_run(&mut self, ahead: &[u8]) -> usize {
        let run = |ends: fn(&u8) -> bool| ahead.iter().position(ends).unwrap_or(ahead.len());
        match self.step {
            Step::Text(_, Escape::None) => {
                let len = run(|b| matches!(b, b'"' | b'\\'));
                self.unescaped(&ahead[..len]);
                len
            }
            Step::Text(..) => 0,
            Step::Word => run(|b| !is_in_word(*b)),
            Step::Integer => 0,
            _ => run(|b| !is_blank(*b)),
        }
    }

    /// One byte. `Err` ends the scan, with what it found.
    fn take(&mut self, byte: u8) -> Result<(), End> {
        if let Step::Text(role, escape) = self.step {
            return self.take_text(role, escape, byte);
        }
        if self.step == Step::Integer {
            return self.take_integer(byte);
        }
        if self.step == Step::Word {
            if is_in_word(byte) {
                return Ok(());
            }
            self.step = Step::Next;
        }
        if is_blank(byte) {
            return Ok(());
        }
        match (self.step, byte) {
            (Step::ElementOrEnd, b']') | (Step::NameOrEnd, b'}') => return self.close(byte),
            (Step::ElementOrEnd, _) => {
                let on_path = self.on_path() && self.element_matches();
                self.value(byte, on_path)?;
            }
            (Step::Value(on_path), _) => self.value(byte, on_path)?,
            (Step::NameOrEnd | Step::Name, b'"') => {
                let role = if self.on_path() {
                    Role::Name(Some(0))
                } else {
                    Role::OtherName
                };
                self.step = Step::Text(role, Escape::None);
            }
            (Step::Colon(matched), b':') => self.step = Step::Value(matched),
            (Step::Next, b',') if self.in_object() => self.step = Step::Name,
            (Step::Next, b',') if self.depth > 0 => {
                if self.on_path() {
                    self.element += 1;
                }
                self.step = Step::Value(self.on_path() && self.element_matches());
            }
            (Step::Next, b'}' | b']') => return self.close(byte),
            _ => return Err(End::Absent(Absence::Malformed)),
        }
        Ok(())
    }

    /// The first byte of a value.
    fn value(&mut self, byte: u8, on_path: bool) -> Result<(), End> {
        // The document itself is the value on the path with no segment used up yet.
        let target = on_path && self.depth > 0 && self.path.is_last(self.depth - 1);
        match byte {
            b'{' | b'[' if target => return Err(End::Absent(Absence::WrongType)),
            b'{' | b'[' => {
                if self.depth == DEPTH_MAX {
                    return Err(End::Absent(Absence::TooDeep));
                }
                self.open = (self.open << 1) | u128::from(byte == b'{');
                self.depth += 1;
                if on_path {
                    self.matched_count += 1;
                    self.element = 0;
                    let element = self.path.segment(self.depth - 1).and_then(|s| s.element);
                    if byte == b'[' && element.is_none() {
                        return Err(End::Absent(Absence::NotFound));
                    }
                }
                self.step = if byte == b'{' {
                    Step::NameOrEnd
                } else {
                    Step::ElementOrEnd
                };
            }
            b'"' if target => self.step = Step::Text(Role::Target, Escape::None),
            b'-' | b'0'..=b'9' if target => {
                self.value.push(&[byte]);
                self.step = Step::Integer;
            }
            b't' | b'f' | b'n' if target => return Err(End::Absent(Absence::WrongType)),
            b'"' | b'-' | b'0'..=b'9' | b't' | b'f' | b'n' if on_path => {
                return Err(End::Absent(Absence::NotFound));
            }
            b'"' => self.step = Step::Text(Role::Other, Escape::None),
            b'-' | b'0'..=b'9' | b't' | b'f' | b'n' => self.step = Step::Word,
            _ => return Err(End::Absent(Absence::Malformed)),
        }
        Ok(())
    }

    fn close(&mut self, byte: u8) -> Result<(), End> {
        if self.depth == 0 || self.in_object() != (byte == b'}') {
            return Err(End::Absent(Absence::Malformed));
        }
        if self.on_path() {
            return Err(End::Absent(Absence::NotFound));
        }
        self.open >>= 1;
        self.depth -= 1;
        self.step = Step::Next;
        Ok(())
    }

    /// True when the innermost container lies on the path.
    fn on_path(&self) -> bool {
        self.depth == self.matched_count
    }

    fn in_object(&self) -> bool {
        self.depth > 0 && self.open & 1 == 1
    }

    fn element_matches(&self) -> bool {
        let segment = self.path.segment(self.depth - 1);
        segment.and_then(|s| s.element) == Some(self.element)
    }

    fn take_integer(&mut self, byte: u8) -> Result<(), End> {
        match byte {
            b'0'..=b'9' => {
                self.value.push(&[byte]);
                Ok(())
            }
            b'.' | b'e' | b'E' => Err(End::Absent(Absence::WrongType)),
            b' ' | b'\t' | b'\n' | b'\r' | b',' | b']' | b'}' => Err(if self.value.is_integer() {
                End::Found
            } else {
                End::Absent(Absence::Malformed)
            }),
            _ => Err(End::Absent(Absence::Malformed)),
        }
    }

    fn take_text(&mut self, role: Role, escape: Escape, byte: u8) -> Result<(), End> {
        let next = match (escape, byte) {
            (Escape::None, b'"') => return self.end_text(role),
            (Escape::High(high), b'"') => {
                self.unescaped_surrogate(high);
                // The comparison may have changed the role.
                let Step::Text(role, _) = self.step else {
                    return Err(End::Absent(Absence::Malformed));
                };
                return self.end_text(role);
            }
            (Escape::None, b'\\') => Escape::Started(None),
            (Escape::High(high), b'\\') => Escape::Started(Some(high)),
            (Escape::None, _) => {
                self.unescaped(&[byte]);
                Escape::None
            }
            (Escape::High(high), _) => {
                self.unescaped_surrogate(high);
                self.unescaped(&[byte]);
                Escape::None
            }
            (Escape::Started(high), b'u') => Escape::Digits {
                value: 0,
                seen: 0,
                high,
            },
            (Escape::Started(high), _) => {
                let plain = match byte {
                    b'"' | b'\\' | b'/' => byte,
                    b'b' => 0x08,
                    b'f' => 0x0C,
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    _ => return Err(End::Absent(Absence::Malformed)),
                };
                if let Some(high) = high {
                    self.unescaped_surrogate(high);
                }
                self.unescaped(&[plain]);
                Escape::None
            }
            (Escape::Digits { value, seen, high }, _) => {
                let digit = (byte as char)
                    .to_digit(16)
                    .ok_or(End::Absent(Absence::Malformed))?;
                let value = (value << 4) | digit as u16;
                if seen < 3 {
                    Escape::Digits {
                        value,
                        seen: seen + 1,
                        high,
                    }
                } else {
                    self.end_unicode(value, high)
                }
            }
        };
        if let Step::Text(role, _) = self.step {
            self.step = Step::Text(role, next);
        }
        Ok(())
    }

    /// Four digits are complete.
    fn end_unicode(&mut self, unit: u16, high: Option<u16>) -> Escape {
        match (high, unit) {
            (Some(high), 0xDC00..=0xDFFF) => {
                let code =
                    0x10000 + ((u32::from(high) - 0xD800) << 10) + (u32::from(unit) - 0xDC00);
                self.unescaped_code(code);
                Escape::None
            }
            (Some(lone), _) => {
                self.unescaped_surrogate(lone);
                self.end_unicode(unit, None)
            }
            (None, 0xD800..=0xDBFF) => Escape::High(unit),
            (None, 0xDC00..=0xDFFF) => {
                self.unescaped_surrogate(unit);
                Escape::None
            }
            (None, _) => {
                self.unescaped_code(u32::from(unit));
                Escape::None
            }
        }
    }

    fn unescaped_code(&mut self, code: u32) {
        let mut utf8 = [0u8; 4];
        if let Some(c) = char::from_u32(code) {
            self.unescaped(c.encode_utf8(&mut utf8).as_bytes());
        }
    }

    /// A half without its other half, in the three bytes that UTF-8 would give it.
    fn unescaped_surrogate(&mut self, unit: u16) {
        let low = |shift: u16| 0x80 | ((unit >> shift) & 0x3F) as u8;
        self.unescaped(&[0xE0 | (unit >> 12) as u8, low(6), low(0)]);
    }

    /// The next bytes of a string, escapes undone.
    fn unescaped(&mut self, bytes: &[u8]) {
        match &mut self.step {
            Step::Text(Role::Target, _) => self.value.push(bytes),
            Step::Text(Role::Name(matched), _) => {
                let name = self
                    .path
                    .segment(self.depth - 1)
                    .map_or(&[][..], |s| &s.name);
                *matched = matched
                    .filter(|at| name[*at..].starts_with(bytes))
                    .map(|at| at + bytes.len());
            }
            _ => {}
        }
    }

    fn end_text(&mut self, role: Role) -> Result<(), End> {
        self.step = match role {
            Role::Target => return Err(End::Found),
            Role::Other => Step::Next,
            Role::OtherName => Step::Colon(false),
            Role::Name(matched) => {
                let name = self.path.segment(self.depth - 1).map(|s| s.name.len());
                Step::Colon(matched.is_some() && matched == name)
            }
        };
        Ok(())
    }
}

fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r')
}

/// Of a number, or of `true`, `false`, `null`.
fn is_in_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.')
}
