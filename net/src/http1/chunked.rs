//! The chunked transfer coding, read byte by byte. Pure.
//!
//! Invariants: every byte given is taken unless the body ended; what comes out depends on the
//! bytes alone, never on how they were split; a size never wraps; nothing but `CR LF` ends a line.
//! Trailers are checked and dropped.

use super::head::is_token;

/// Bytes of chunk extensions in one body.
const EXTENSION_BYTES_MAX: u32 = 16 * 1024;
/// Bytes of trailers in one body.
const TRAILER_BYTES_MAX: u32 = 8 * 1024;
/// Hexadecimal digits of one chunk's size: what fits 64 bits.
const SIZE_DIGITS_MAX: u8 = 16;

/// Why a chunked body is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChunkFault {
    /// Its framing is in doubt.
    Malformed,
    /// More bytes of body than allowed.
    TooLarge,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    SizeFirst,
    Size,
    Extension,
    Quoted,
    QuotedEscape,
    SizeLf,
    Data,
    DataCr,
    DataLf,
    TrailerStart,
    TrailerName,
    TrailerValue,
    TrailerLf,
    EndLf,
    Done,
}

/// Takes a chunked body apart.
#[derive(Clone, Debug)]
pub struct ChunkDecoder {
    state: State,
    /// Of the chunk being read: its size while the line is read, then what is left of it.
    chunk_left: u64,
    size_digits: u8,
    body_len: u64,
    body_bytes_max: u64,
    extension_bytes: u32,
    trailer_bytes: u32,
}

impl ChunkDecoder {
    /// A decoder for a body of at most `body_bytes_max` bytes.
    pub fn new(body_bytes_max: u64) -> Self {
        ChunkDecoder {
            state: State::SizeFirst,
            chunk_left: 0,
            size_digits: 0,
            body_len: 0,
            body_bytes_max,
            extension_bytes: 0,
            trailer_bytes: 0,
        }
    }

    /// The body and its trailers are complete.
    pub fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// Takes bytes until the input or the body ends, giving runs of body bytes to `sink`. Answers
    /// how many bytes were taken; what follows them belongs to the next request.
    pub fn feed(&mut self, input: &[u8], mut sink: impl FnMut(&[u8])) -> Result<usize, ChunkFault> {
        let mut at = 0;
        while at < input.len() && self.state != State::Done {
            if self.state == State::Data {
                let run = self.chunk_left.min((input.len() - at) as u64) as usize;
                sink(&input[at..at + run]);
                at += run;
                self.chunk_left -= run as u64;
                if self.chunk_left == 0 {
                    self.state = State::DataCr;
                }
            } else {
                self.state = self.step(input[at])?;
                at += 1;
            }
        }
        Ok(at)
    }

    fn step(&mut self, b: u8) -> Result<State, ChunkFault> {
        const BAD: ChunkFault = ChunkFault::Malformed;
        match self.state {
            State::SizeFirst => {
                self.chunk_left = 0;
                self.size_digits = 0;
                self.digit(b)
            }
            State::Size => match b {
                b'\r' => Ok(State::SizeLf),
                b';' => self.extension(State::Extension),
                _ => self.digit(b),
            },
            State::Extension => match b {
                b'\r' => Ok(State::SizeLf),
                b'"' => self.extension(State::Quoted),
                0x21..=0x7e | b' ' | b'\t' => self.extension(State::Extension),
                _ => Err(BAD),
            },
            State::Quoted => match b {
                b'"' => self.extension(State::Extension),
                b'\\' => self.extension(State::QuotedEscape),
                0x20..=0x7e | b'\t' | 0x80.. => self.extension(State::Quoted),
                _ => Err(BAD),
            },
            State::QuotedEscape => match b {
                0x20..=0x7e | b'\t' | 0x80.. => self.extension(State::Quoted),
                _ => Err(BAD),
            },
            State::SizeLf if b == b'\n' => self.begin_chunk(),
            State::DataCr if b == b'\r' => Ok(State::DataLf),
            State::DataLf if b == b'\n' => Ok(State::SizeFirst),
            State::TrailerStart => match b {
                b'\r' => Ok(State::EndLf),
                _ if is_token(b) => self.trailer(State::TrailerName),
                _ => Err(BAD),
            },
            State::TrailerName => match b {
                b':' => self.trailer(State::TrailerValue),
                _ if is_token(b) => self.trailer(State::TrailerName),
                _ => Err(BAD),
            },
            State::TrailerValue => match b {
                b'\r' => Ok(State::TrailerLf),
                0x20..=0x7e | b'\t' | 0x80.. => self.trailer(State::TrailerValue),
                _ => Err(BAD),
            },
            State::TrailerLf if b == b'\n' => Ok(State::TrailerStart),
            State::EndLf if b == b'\n' => Ok(State::Done),
            State::SizeLf | State::DataCr | State::DataLf | State::TrailerLf | State::EndLf => {
                Err(BAD)
            }
            State::Data | State::Done => {
                unreachable!("bytes of these states are not stepped through")
            }
        }
    }

    fn digit(&mut self, b: u8) -> Result<State, ChunkFault> {
        let value = match b {
            b'0'..=b'9' => b - b'0',
            b'a'..=b'f' => b - b'a' + 10,
            b'A'..=b'F' => b - b'A' + 10,
            _ => return Err(ChunkFault::Malformed),
        };
        if self.size_digits == SIZE_DIGITS_MAX {
            return Err(ChunkFault::Malformed);
        }
        self.size_digits += 1;
        self.chunk_left = (self.chunk_left << 4) | u64::from(value);
        Ok(State::Size)
    }

    fn begin_chunk(&mut self) -> Result<State, ChunkFault> {
        if self.chunk_left == 0 {
            return Ok(State::TrailerStart);
        }
        if self.chunk_left > self.body_bytes_max - self.body_len {
            return Err(ChunkFault::TooLarge);
        }
        self.body_len += self.chunk_left;
        Ok(State::Data)
    }

    fn extension(&mut self, next: State) -> Result<State, ChunkFault> {
        self.extension_bytes += 1;
        if self.extension_bytes > EXTENSION_BYTES_MAX {
            Err(ChunkFault::Malformed)
        } else {
            Ok(next)
        }
    }

    fn trailer(&mut self, next: State) -> Result<State, ChunkFault> {
        self.trailer_bytes += 1;
        if self.trailer_bytes > TRAILER_BYTES_MAX {
            Err(ChunkFault::Malformed)
        } else {
            Ok(next)
        }
    }
}

#[cfg(test)]
mod tests;
