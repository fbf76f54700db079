//! Moments in time, to the millisecond, as RFC 3339 text.
//!
//! Deliberately not here: a clock. Whoever needs to know the time is told.

use core::fmt;
use core::str::FromStr;
use core::time::Duration;

use crate::ValidationError;
use crate::text::as_text;

/// Milliseconds since 1970-01-01T00:00:00Z, up to the end of the year 9999.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(u64);

const SECOND: u64 = 1_000;
const DAY: u64 = 86_400 * SECOND;
/// Days in 400 years, after which the calendar repeats.
const ERA: u64 = 146_097;
/// Days from 0000-03-01 to 1970-01-01.
const TO_1970: u64 = 719_468;

impl Timestamp {
    /// The first moment.
    pub const EPOCH: Timestamp = Timestamp(0);
    /// The last moment that can be written: 9999-12-31T23:59:59.999Z.
    pub const MAX: Timestamp = Timestamp(253_402_300_799_999);

    /// This many milliseconds after 1970 began; moments after [`Timestamp::MAX`] become that.
    pub fn from_millis(millis: u64) -> Timestamp {
        Timestamp(millis).min(Timestamp::MAX)
    }

    /// Milliseconds since 1970 began.
    pub fn millis(self) -> u64 {
        self.0
    }

    /// How long after `earlier` this is; nothing if it is not after it.
    pub fn since(self, earlier: Timestamp) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }

    /// This much later.
    #[must_use]
    pub fn after(self, wait: Duration) -> Timestamp {
        let millis = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
        Timestamp::from_millis(self.0.saturating_add(millis))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (year, month, day) = date(self.0 / DAY);
        let seconds = self.0 % DAY / SECOND;
        let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
        let millis = self.0 % SECOND;
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z")
    }
}

impl FromStr for Timestamp {
    type Err = ValidationError;

    fn from_str(text: &str) -> Result<Timestamp, ValidationError> {
        read(text).ok_or_else(|| {
            let remedy = "write it as RFC 3339 from 1970 to 9999, such as 2026-11-15T21:30:58.123Z";
            ValidationError::text("timestamp", text, remedy)
        })
    }
}

as_text!(Timestamp, "format": "date-time");

/// The date of a day counted from 1970. Years are counted from March, so that a leap day is the
/// last.
fn date(days: u64) -> (u64, u64, u64) {
    let days = days + TO_1970;
    let (era, day) = (days / ERA, days % ERA);
    let year = (day - day / 1_460 + day / 36_524 - day / (ERA - 1)) / 365;
    let day = day - days_before(year);
    let month = (5 * day + 2) / 153;
    let day_of_month = day - (153 * month + 2) / 5 + 1;
    let (month, carry) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    (400 * era + year + carry, month, day_of_month)
}

/// Days since 1970 of a date of 1970 or later, if that date exists.
fn days((year, month, day): (u64, u64, u64)) -> Option<u64> {
    if !(1970..=9999).contains(&year) || !(1..=12).contains(&month) || day == 0 {
        return None;
    }
    let (march_year, march_month) =
        if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let day_of_year = (153 * march_month + 2) / 5 + day - 1;
    let (era, year_of_era) = (march_year / 400, march_year % 400);
    let days = era * ERA + days_before(year_of_era) + day_of_year - TO_1970;
    // A 31st of a short month lands in the next one.
    (date(days) == (year, month, day)).then_some(days)
}

/// Days of the era before this year of it.
fn days_before(year: u64) -> u64 {
    365 * year + year / 4 - year / 100
}

fn read(text: &str) -> Option<Timestamp> {
    let mut rest = text;
    let (year, month, day) =
        (digits(&mut rest, 4, "-")?, digits(&mut rest, 2, "-")?, digits(&mut rest, 2, "Tt")?);
    let (hour, minute) = (digits(&mut rest, 2, ":")?, digits(&mut rest, 2, ":")?);
    let second = digits(&mut rest, 2, "")?;
    if hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    let millis = fraction(&mut rest)?;
    let seconds = hour * 3600 + minute * 60 + second;
    let local = days((year, month, day))? * DAY + seconds * SECOND + millis;
    let utc = match rest {
        "Z" | "z" => local,
        _ if rest.starts_with('+') => local.checked_sub(offset(&rest[1..])?)?,
        _ if rest.starts_with('-') => local.checked_add(offset(&rest[1..])?)?,
        _ => return None,
    };
    (utc <= Timestamp::MAX.0).then_some(Timestamp(utc))
}

/// Takes `count` digits and one of the characters `then` off the front.
fn digits(rest: &mut &str, count: usize, then: &str) -> Option<u64> {
    let (number, tail) = rest.split_at_checked(count)?;
    if !number.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    *rest = if then.is_empty() { tail } else { tail.strip_prefix(|c| then.contains(c))? };
    number.parse().ok()
}

/// Milliseconds of a fraction of a second; finer digits are dropped.
fn fraction(rest: &mut &str) -> Option<u64> {
    let Some(tail) = rest.strip_prefix('.') else { return Some(0) };
    let end = tail.find(|c: char| !c.is_ascii_digit()).unwrap_or(tail.len());
    let (number, tail) = tail.split_at(end);
    *rest = tail;
    let places = number.bytes().chain(core::iter::repeat(b'0')).take(3);
    (!number.is_empty())
        .then(|| places.fold(0, |millis, digit| millis * 10 + u64::from(digit - b'0')))
}

/// Milliseconds of `02:00`.
fn offset(mut text: &str) -> Option<u64> {
    let (hours, minutes) = (digits(&mut text, 2, ":")?, digits(&mut text, 2, "")?);
    (hours <= 23 && minutes <= 59 && text.is_empty())
        .then_some((hours * 60 + minutes) * 60 * SECOND)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;
    use proptest::prelude::*;

    #[test]
    fn known_moments() {
        for (text, millis) in [
            ("1970-01-01T00:00:00.000Z", 0),
            ("2000-02-29T12:00:00.000Z", 951_825_600_000),
            ("2026-11-15T21:30:58.123Z", 1_794_778_258_123),
            ("9999-12-31T23:59:59.999Z", Timestamp::MAX.0),
        ] {
            assert_eq!(Timestamp(millis).to_string(), text);
            assert_eq!(text.parse(), Ok(Timestamp(millis)));
        }
    }

    #[test]
    fn other_spellings_of_one_moment() {
        let moment: Timestamp = "2026-11-15T21:30:58.120Z".parse().unwrap();
        for text in [
            "2026-11-15t21:30:58.12z",
            "2026-11-15T21:30:58.120999Z",
            "2026-11-15T23:00:58.12+01:30",
            "2026-11-15T16:30:58.12-05:00",
        ] {
            assert_eq!(text.parse(), Ok(moment), "{text}");
        }
    }

    #[test]
    fn what_is_no_moment_is_refused() {
        for text in [
            "",
            "2026-11-15",
            "2026-11-15T21:30:58",
            "2026-11-15 21:30:58Z",
            "2026-02-29T00:00:00Z",
            "2026-13-01T00:00:00Z",
            "2026-00-01T00:00:00Z",
            "2026-01-00T00:00:00Z",
            "2026-04-31T00:00:00Z",
            "2026-01-01T24:00:00Z",
            "2026-01-01T00:60:00Z",
            "2026-01-01T00:00:60Z",
            "2026-01-01T00:00:00.Z",
            "2026-01-01T00:00:00Zx",
            "2026-01-01T00:00:00+1:00",
            "2026-01-01T00:00:00+24:00",
            "1969-12-31T23:59:59Z",
            "1970-01-01T00:00:00+00:01",
            "9999-12-31T23:59:59-00:01",
            "+026-01-01T00:00:00Z",
            "２026-01-01T00:00:00Z",
        ] {
            let refused = text.parse::<Timestamp>().unwrap_err().to_string();
            assert!(refused.contains("RFC 3339"), "{refused}");
        }
    }

    #[test]
    fn every_day_of_the_calendar_is_the_one_after_the_day_before() {
        let leap = |year| year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
        let (mut year, mut month, mut day) = (1970, 1, 1);
        for number in 0..=Timestamp::MAX.0 / DAY {
            assert_eq!(date(number), (year, month, day));
            assert_eq!(days((year, month, day)), Some(number));
            let last = match month {
                2 => 28 + u64::from(leap(year)),
                4 | 6 | 9 | 11 => 30,
                _ => 31,
            };
            (year, month, day) = match (day == last, month) {
                (false, _) => (year, month, day + 1),
                (true, 12) => (year + 1, 1, 1),
                (true, _) => (year, month + 1, 1),
            };
        }
    }

    proptest! {
        #[test]
        fn moments_survive_printing(millis in 0..=Timestamp::MAX.0) {
            let moment = Timestamp(millis);
            prop_assert_eq!(moment.to_string().parse(), Ok(moment));
        }

        #[test]
        fn any_text_is_a_moment_or_refused(text in "[0-9TtZz:.+-]{0,30}|\\PC{0,30}") {
            let _ = text.parse::<Timestamp>();
        }
    }
}
