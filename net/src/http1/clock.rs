//! Coarse time of one core: monotonic milliseconds and the `Date` line, moved by the sweep. No
//! system call per request.

use std::cell::Cell;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Length of an HTTP date.
pub(crate) const DATE_LEN: usize = 29;

pub(crate) struct Clock {
    start: Instant,
    now_ms: Cell<u64>,
    date_s: Cell<u64>,
    date: Cell<[u8; DATE_LEN]>,
}

impl Clock {
    pub(crate) fn new() -> Self {
        let clock = Clock {
            start: Instant::now(),
            now_ms: Cell::new(0),
            date_s: Cell::new(u64::MAX),
            date: Cell::new([0; DATE_LEN]),
        };
        clock.tick();
        clock
    }

    /// Milliseconds since the server began, as of the last sweep.
    pub(crate) fn now_ms(&self) -> u64 {
        self.now_ms.get()
    }

    pub(crate) fn date(&self) -> [u8; DATE_LEN] {
        self.date.get()
    }

    pub(crate) fn tick(&self) {
        self.now_ms
            .set(u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX));
        let wall_s = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |d| d.as_secs());
        if wall_s != self.date_s.get() {
            self.date_s.set(wall_s);
            self.date.set(http_date(wall_s));
        }
    }
}

/// `Sun, 06 Nov 1994 08:49:37 GMT` of seconds since 1970.
pub(crate) fn http_date(unix_s: u64) -> [u8; DATE_LEN] {
    const DAYS: &[u8; 21] = b"ThuFriSatSunMonTueWed";
    const MONTHS: &[u8; 36] = b"JanFebMarAprMayJunJulAugSepOctNovDec";
    let days = unix_s / 86_400;
    let second = unix_s % 86_400;
    // Days to a civil date, counting years from March so that the leap day comes last.
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let day_of_era = shifted % 146_097;
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 {
        month_from_march + 3
    } else {
        month_from_march - 9
    };
    let year = (year_of_era + era * 400 + u64::from(month <= 2)).min(9999);

    let mut out = *b"Thu, 01 Jan 1970 00:00:00 GMT";
    let name = |table: &[u8], at: u64| -> [u8; 3] {
        let at = at as usize * 3;
        [table[at], table[at + 1], table[at + 2]]
    };
    let two = |n: u64| [b'0' + (n / 10 % 10) as u8, b'0' + (n % 10) as u8];
    out[0..3].copy_from_slice(&name(DAYS, days % 7));
    out[5..7].copy_from_slice(&two(day));
    out[8..11].copy_from_slice(&name(MONTHS, month - 1));
    out[12..14].copy_from_slice(&two(year / 100));
    out[14..16].copy_from_slice(&two(year));
    out[17..19].copy_from_slice(&two(second / 3600));
    out[20..22].copy_from_slice(&two(second / 60 % 60));
    out[23..25].copy_from_slice(&two(second % 60));
    out
}

#[cfg(test)]
mod tests {
    use super::http_date;

    #[test]
    fn dates_are_those_of_the_calendar() {
        let check = |unix_s, expected: &str| {
            assert_eq!(std::str::from_utf8(&http_date(unix_s)).unwrap(), expected)
        };
        check(0, "Thu, 01 Jan 1970 00:00:00 GMT");
        check(784_111_777, "Sun, 06 Nov 1994 08:49:37 GMT");
        check(951_782_399, "Mon, 28 Feb 2000 23:59:59 GMT");
        check(951_782_400, "Tue, 29 Feb 2000 00:00:00 GMT");
        check(1_798_761_599, "Thu, 31 Dec 2026 23:59:59 GMT");
        check(4_107_542_400, "Mon, 01 Mar 2100 00:00:00 GMT");
    }
}
