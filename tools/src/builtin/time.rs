//! `time`: the clock and the calendar.
use std::{sync::Arc, time::SystemTime};

use async_trait::async_trait;
use jiff::{Timestamp, ZonedDateTime, civil, fmt::rfc2822, tz::TimeZone};
use octomesh_protocol::card::ToolCard;
use serde_json::{Value, json};

use crate::{
    registry::RegistryError,
    tool::{Arguments, CallContext, Tool, ToolError, ToolOutput},
};

/// The tool.
#[derive(Debug)]
pub struct Time(Arc<ToolCard>);

impl Time {
    /// With its card.
    ///
    /// # Errors
    /// Never with the card that is built in.
    pub fn new() -> Result<Self, RegistryError> {
        super::card(include_str!("cards/time.toml"), "time.toml").map(Self)
    }
}

#[async_trait]
impl Tool for Time {
    fn card(&self) -> &Arc<ToolCard> {
        &self.0
    }

    async fn call(&self, context: &CallContext, arguments: Arguments) -> Result<ToolOutput, ToolError> {
        answer(&arguments, (context.wall)()).map(Into::into)
    }
}

fn answer(arguments: &Arguments, wall: SystemTime) -> Result<Value, ToolError> {
    let zone = match super::optional_text(arguments, "tz") {
        None => TimeZone::UTC,
        Some(name) => zone(name)?,
    };
    let now = || {
        Timestamp::try_from(wall)
            .map(|t| t.to_zoned_datetime(zone.clone()))
            .map_err(|e| ToolError::Failed(format!("the node's clock: {e}")))
    };
    let moment = |name: &str| match super::optional_text(arguments, name) {
        Some(text) => parse(text, &zone).ok_or_else(|| not_a_time(name, text)),
        None => now(),
    };
    match super::text(arguments, "op")? {
        "now" => Ok(describe(&now()?)),
        "parse" => {
            super::text(arguments, "value")?;
            Ok(describe(&moment("value")?))
        }
        "convert" => {
            super::text(arguments, "tz")?;
            Ok(describe(&moment("value")?.with_time_zone(zone.clone())))
        }
        "format" => {
            let at = moment("value")?;
            let format = super::optional_text(arguments, "format").unwrap_or("%Y-%m-%d %H:%M:%S %Z");
            let text = jiff::fmt::strtime::format(format, &at)
                .map_err(|e| ToolError::InvalidArguments(format!("argument `format`: {e}")))?;
            Ok(json!({ "text": text, "iso": iso(&at) }))
        }
        "diff" => {
            let (from, to) = (moment("value")?, moment("other")?);
            diff(&from, &to)
        }
        other => Err(ToolError::InvalidArguments(format!("argument `op`: unknown operation {other:?}"))),
    }
}

fn diff(from: &ZonedDateTime, to: &ZonedDateTime) -> Result<Value, ToolError> {
    let seconds = to.timestamp().as_second() - from.timestamp().as_second();
    let span = from
        .until((jiff::Unit::Day, to))
        .map_err(|e| ToolError::InvalidArguments(format!("these two times: {e}")))?;
    Ok(json!({
        "from": iso(from),
        "to": iso(to),
        "seconds": seconds,
        "days": span.get_days(),
        "text": format!("{span:#}"),
    }))
}

fn zone(name: &str) -> Result<TimeZone, ToolError> {
    TimeZone::get(name).or_else(|_| offset(name).ok_or(())).map_err(|()| {
        let name: String = name.chars().take(60).collect();
        ToolError::InvalidArguments(format!(
            "argument `tz`: {name:?} is no time zone; write a name like Europe/Berlin, or +02:00"
        ))
    })
}

/// `+02:00`, `-0530`, `Z`.
fn offset(text: &str) -> Option<TimeZone> {
    if text.eq_ignore_ascii_case("z") || text.eq_ignore_ascii_case("utc") {
        return Some(TimeZone::UTC);
    }
    let offset =
        jiff::fmt::strtime::parse("%:z", text).or_else(|_| jiff::fmt::strtime::parse("%z", text)).ok()?;
    offset.offset().map(TimeZone::fixed)
}

/// A moment in any of the common forms; without an offset it is in `zone`.
fn parse(text: &str, zone: &TimeZone) -> Option<ZonedDateTime> {
    let text = text.trim();
    if let Ok(zoned) = text.parse::<ZonedDateTime>() {
        return Some(zoned);
    }
    if let Ok(timestamp) = text.parse::<Timestamp>() {
        return Some(timestamp.to_zoned_datetime(zone.clone()));
    }
    if let Ok(seconds) = text.parse::<i64>()
        && text.len() > 4
    {
        return Timestamp::from_second(seconds).ok().map(|t| t.to_zoned_datetime(zone.clone()));
    }
    if let Ok(local) = text.parse::<civil::DateTime>() {
        return local.to_zoned_datetime(zone.clone()).ok();
    }
    if let Ok(date) = text.parse::<civil::Date>() {
        return date.to_zoned_datetime(zone.clone()).ok();
    }
    rfc2822::parse(text).ok()
}

fn not_a_time(name: &str, text: &str) -> ToolError {
    let text: String = text.chars().take(60).collect();
    ToolError::InvalidArguments(format!(
        "argument `{name}`: {text:?} is no time; write 2025-06-01T12:00:00Z, 2025-06-01 12:00, 2025-06-01 or unix seconds"
    ))
}

fn iso(at: &ZonedDateTime) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%S%:z").to_string()
}

fn describe(at: &ZonedDateTime) -> Value {
    let zone = at.time_zone().iana_name().map_or_else(|| at.offset().to_string(), str::to_owned);
    json!({
        "iso": iso(at),
        "unix": at.timestamp().as_second(),
        "tz": zone,
        "date": at.date().to_string(),
        "time": at.strftime("%H:%M:%S").to_string(),
        "weekday": at.strftime("%A").to_string(),
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn ask(arguments: Value) -> Result<Value, ToolError> {
        let Value::Object(arguments) = arguments else { panic!("an object") };
        answer(&arguments, SystemTime::UNIX_EPOCH + Duration::from_secs(1_750_000_000))
    }

    #[test]
    fn now_and_zones() {
        let now = ask(json!({"op": "now"})).unwrap();
        assert_eq!(now["iso"], "2025-06-15T15:06:40+00:00");
        assert_eq!((&now["unix"], &now["weekday"]), (&json!(1_750_000_000), &json!("Sunday")));
        let tokyo = ask(json!({"op": "now", "tz": "Asia/Tokyo"})).unwrap();
        assert_eq!(
            (&tokyo["iso"], &tokyo["date"]),
            (&json!("2025-06-16T00:06:40+09:00"), &json!("2025-06-16"))
        );
        let fixed = ask(json!({"op": "now", "tz": "+05:30"})).unwrap();
        assert_eq!(fixed["iso"], "2025-06-15T20:36:40+05:30");
    }

    #[test]
    fn forms_of_a_moment() {
        for text in [
            "2025-06-15T15:06:40Z",
            "2025-06-15T17:06:40+02:00",
            "2025-06-15 15:06:40",
            "1750000000",
            "Sun, 15 Jun 2025 15:06:40 +0000",
        ] {
            assert_eq!(ask(json!({"op": "parse", "value": text})).unwrap()["unix"], 1_750_000_000, "{text}");
        }
        assert_eq!(
            ask(json!({"op": "parse", "value": "2025-06-15", "tz": "Europe/Berlin"})).unwrap()["iso"],
            "2025-06-15T00:00:00+02:00"
        );
    }

    #[test]
    fn convert_format_diff() {
        let converted =
            ask(json!({"op": "convert", "value": "2025-01-01T00:00:00Z", "tz": "America/New_York"})).unwrap();
        assert_eq!(converted["iso"], "2024-12-31T19:00:00-05:00");
        let text = ask(json!({"op": "format", "value": "2025-06-15", "format": "%d.%m.%Y"})).unwrap();
        assert_eq!(text["text"], "15.06.2025");
        let diff = ask(json!({"op": "diff", "value": "2025-06-01", "other": "2025-06-15T12:00:00"})).unwrap();
        assert_eq!((&diff["days"], &diff["seconds"]), (&json!(14), &json!(14 * 86400 + 43200)));
        assert_eq!(ask(json!({"op": "diff", "value": "2025-06-15T15:00:00Z"})).unwrap()["seconds"], 400);
    }

    #[test]
    fn bad_input_is_named() {
        for (arguments, word) in [
            (json!({"op": "now", "tz": "Mars/Olympus"}), "tz"),
            (json!({"op": "parse", "value": "yesterday-ish"}), "value"),
            (json!({"op": "parse"}), "value"),
            (json!({"op": "convert", "value": "2025-01-01"}), "tz"),
            (json!({"op": "format", "format": "%!"}), "format"),
            (json!({"op": "parse", "value": "99999999999999999"}), "value"),
        ] {
            let error = ask(arguments.clone()).unwrap_err();
            assert!(error.to_string().contains(&format!("`{word}`")), "{arguments}: {error}");
        }
    }
}
