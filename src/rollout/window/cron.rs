//! Cron expressions of five fields: minute, hour, day of month, month, day of week. Pure.
//!
//! In: an expression. Out: whether it matches a day, and a minute of a day. Always holds: the cost of a query does not
//! depend on the expression. The caller handles time zones, and local times that a clock change skips or repeats.
//!
//! The existing crates for jiff do not fit: cronexpr documents no rule for daylight saving time, and croner starts
//! twice at a repeated local time unless the hour is fixed. Both search one instant after another, and accept more
//! syntax than the field documents (`L`, `W`, `#`).

use std::ops::RangeInclusive;

use jiff::civil::Date;

use crate::text::counted;

const MONTHS: [&str; 12] = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
const WEEKDAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];

/// The numbers that match, as a bit set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Numbers(u64);

/// A parsed expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Cron {
    minutes: Numbers,
    hours: Numbers,
    days: Numbers,
    months: Numbers,
    /// Sunday is 0.
    weekdays: Numbers,
    /// Whether a day has to match both day fields, and not only one of them.
    both: bool,
}

/// The allowed values of a field.
struct CronField {
    name: &'static str,
    numbers: RangeInclusive<u8>,
    /// The names of the numbers, starting at the first number.
    names: &'static [&'static str],
}

// === impl Cron ===

impl Cron {
    /// # Errors
    /// When the text is not a cron expression; the error explains why.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let fields: Vec<&str> = text.split_whitespace().collect();
        let [minute, hour, day, month, weekday] = fields.as_slice() else {
            return Err(format!(
                "{text:?} has {} instead of five: minute, hour, day of month, month, day of week",
                counted(fields.len(), "field")
            ));
        };
        let field = |name, numbers, names| CronField { name, numbers, names };
        let weekdays = field("day of week", 0..=7, &WEEKDAYS[..]).parse(weekday)?;
        Ok(Self {
            minutes: field("minute", 0..=59, &[]).parse(minute)?,
            hours: field("hour", 0..=23, &[]).parse(hour)?,
            days: field("day of month", 1..=31, &[]).parse(day)?,
            months: field("month", 1..=12, &MONTHS[..]).parse(month)?,
            // Both 0 and 7 are Sunday.
            weekdays: Numbers(weekdays.0 | weekdays.0 >> 7),
            // As in Vixie cron, a step such as `*/2` also counts as `*` here.
            both: day.starts_with('*') || weekday.starts_with('*'),
        })
    }

    /// Whether the expression matches a day.
    pub(super) fn matches_day(&self, date: Date) -> bool {
        let day = self.days.has(date.day());
        let weekday = self.weekdays.has(date.weekday().to_sunday_zero_offset());
        self.months.has(date.month()) && if self.both { day && weekday } else { day || weekday }
    }

    /// Whether the expression matches a minute on the days that it matches.
    pub(super) fn matches_minute(&self, hour: i8, minute: i8) -> bool {
        self.hours.has(hour) && self.minutes.has(minute)
    }
}

// === impl Numbers ===

impl Numbers {
    fn has(self, number: i8) -> bool {
        (0..64).contains(&number) && self.0 >> number & 1 == 1
    }
}

// === impl CronField ===

impl CronField {
    fn parse(&self, text: &str) -> Result<Numbers, String> {
        text.split(',').map(|part| self.part(part)).try_fold(Numbers(0), |all, part| Ok(Numbers(all.0 | part?.0)))
    }

    /// Parses one item of a list: `*`, a number or a range, each with or without a step.
    fn part(&self, text: &str) -> Result<Numbers, String> {
        let (range, step) = match text.split_once('/') {
            None => (text, None),
            Some((range, step)) => match step.parse() {
                Ok(step @ 1..=u8::MAX) => (range, Some(step)),
                _ => return Err(format!("{}: {step:?} is not a step in {text:?}", self.name)),
            },
        };
        let (first, last) = match range.split_once('-') {
            _ if range == "*" => (*self.numbers.start(), *self.numbers.end()),
            Some((first, last)) => (self.number(first)?, self.number(last)?),
            // A number with a step but without an end runs to the last number of the field.
            None => (self.number(range)?, step.map_or(self.number(range)?, |_| *self.numbers.end())),
        };
        // A range of weekdays may end with Sunday as 0.
        let last = if last == 0 && first > 0 && *self.numbers.end() == 7 { 7 } else { last };
        if first > last {
            return Err(format!("{}: {range:?} ends before it begins", self.name));
        }
        let numbers = (first..=last).step_by(step.unwrap_or(1).into());
        Ok(Numbers(numbers.fold(0, |all, number| all | 1 << number)))
    }

    fn number(&self, text: &str) -> Result<u8, String> {
        let named = || (*self.numbers.start()..).zip(self.names).find(|(_, name)| text.eq_ignore_ascii_case(name));
        let is_digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let number = if is_digits { text.parse().ok() } else { named().map(|(number, _)| number) };
        number.filter(|number| self.numbers.contains(number)).ok_or_else(|| {
            let (first, last) = (self.numbers.start(), self.numbers.end());
            let or_name = if self.names.is_empty() { "" } else { " or a three-letter name" };
            format!("{}: {text:?} is not a number from {first} to {last}{or_name}", self.name)
        })
    }
}

#[cfg(test)]
mod tests {
    use jiff::civil::date;

    use super::*;

    fn minutes(expression: &str) -> Vec<String> {
        let cron = Cron::parse(expression).unwrap();
        let all = (0..24).flat_map(|hour| (0..60).map(move |minute| (hour, minute)));
        all.filter(|(hour, minute)| cron.matches_minute(*hour, *minute)).map(|(h, m)| format!("{h}:{m:02}")).collect()
    }

    /// Returns the matching days of March 2026, which begins on a Sunday.
    fn days(expression: &str) -> Vec<i8> {
        let cron = Cron::parse(expression).unwrap();
        (1..=31).filter(|day| cron.matches_day(date(2026, 3, *day))).collect()
    }

    #[test]
    fn lists_ranges_and_steps_are_parsed() {
        assert_eq!(minutes("0 2 * * *"), ["2:00"]);
        assert_eq!(minutes("5,35 1-3/2,22 * * *"), ["1:05", "1:35", "3:05", "3:35", "22:05", "22:35"]);
        assert_eq!(minutes("*/20 23 * * *"), ["23:00", "23:20", "23:40"]);
        assert_eq!(minutes("45/5 00 * * *"), ["0:45", "0:50", "0:55"]);
        assert_eq!(minutes("10-12,11-13 7 * * *"), ["7:10", "7:11", "7:12", "7:13"]);
        assert_eq!(minutes("*/255 */100 * * *"), ["0:00"]);
        assert_eq!(minutes("* * * * *").len(), 1440);
        assert_eq!(minutes("  0\t2 *  * * "), ["2:00"]);
    }

    #[test]
    fn days_have_names_and_sunday_two_numbers() {
        assert_eq!(days("0 0 * * 0"), [1, 8, 15, 22, 29]);
        for sunday in ["7", "sun", "Sun", "SUN", "0,7"] {
            assert_eq!(days(&format!("0 0 * * {sunday}")), days("0 0 * * 0"), "{sunday}");
        }
        assert_eq!(days("0 0 * * mon-Fri"), days("0 0 * * 1-5"));
        for weekend in ["sat-sun", "6-7", "6-0", "6,0"] {
            assert_eq!(days(&format!("0 0 * * {weekend}")), [1, 7, 8, 14, 15, 21, 22, 28, 29], "{weekend}");
        }
        assert_eq!(days("0 0 * * 0-7").len(), 31);
        assert_eq!(days("0 0 * MAR-may *").len(), 31);
        assert_eq!(days("0 0 * 1,2,4-12 *"), [0; 0]);
    }

    #[test]
    fn with_two_restricted_day_fields_either_may_match() {
        assert_eq!(days("0 0 2 * *"), [2]);
        assert_eq!(days("0 0 2 * 1"), [2, 9, 16, 23, 30]);
        assert_eq!(days("0 0 3,4 * 1"), [2, 3, 4, 9, 16, 23, 30]);
        // A field that begins with * is not a restriction in this sense, so both fields have to match.
        assert_eq!(days("0 0 */8 * 0"), [1]);
        assert_eq!(days("0 0 1-9 * */6"), [1, 7, 8]);
    }

    #[test]
    fn an_invalid_expression_is_reported_with_its_field() {
        for (expression, why) in [
            ("", "has 0 fields instead of five"),
            ("0 2 * *", "has 4 fields"),
            ("0 0 2 * * *", "has 6 fields"),
            ("@daily", "has 1 field instead"),
            ("60 2 * * *", r#"minute: "60" is not a number from 0 to 59"#),
            ("0 24 * * *", r#"hour: "24" is not a number from 0 to 23"#),
            ("0 2 0 * *", r#"day of month: "0" is not a number from 1 to 31"#),
            ("0 2 * 13 *", r#"month: "13" is not a number from 1 to 12 or a three-letter name"#),
            ("0 2 * * 8", r#"day of week: "8" is not a number from 0 to 7"#),
            ("0 2 * march *", r#"month: "march""#),
            ("0 2 * * jan", r#"day of week: "jan""#),
            ("0 +2 * * *", r#"hour: "+2""#),
            ("0 999999 * * *", r#"hour: "999999""#),
            ("0 -2 * * *", r#"hour: """#),
            ("0 1,,2 * * *", r#"hour: """#),
            ("0 6-2 * * *", r#"hour: "6-2" ends before it begins"#),
            ("0 2 * * 5-2", r#""5-2" ends before it begins"#),
            ("*/0 * * * *", r#"minute: "0" is not a step in "*/0""#),
            ("*/-1 * * * *", r#""-1" is not a step"#),
            ("*/256 * * * *", r#""256" is not a step"#),
            ("1/2/3 * * * *", r#""2/3" is not a step"#),
            ("? * * * *", r#"minute: "?""#),
            ("*5 * * * *", r#"minute: "*5""#),
            ("0 2 L * *", r#"day of month: "L""#),
            ("0 2 * * 1#2", r##"day of week: "1#2""##),
        ] {
            let error = Cron::parse(expression).unwrap_err();
            assert!(error.contains(why), "{expression:?}: {error}");
        }
    }
}
