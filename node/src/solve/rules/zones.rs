//! Time zones as people name them.

/// Cities whose zone has another name, or that people write without their continent.
const CITIES: [(&str, &str); 34] = [
    ("amsterdam", "Europe/Amsterdam"),
    ("athens", "Europe/Athens"),
    ("bangkok", "Asia/Bangkok"),
    ("beijing", "Asia/Shanghai"),
    ("berlin", "Europe/Berlin"),
    ("cairo", "Africa/Cairo"),
    ("chicago", "America/Chicago"),
    ("delhi", "Asia/Kolkata"),
    ("denver", "America/Denver"),
    ("dubai", "Asia/Dubai"),
    ("dublin", "Europe/Dublin"),
    ("hong kong", "Asia/Hong_Kong"),
    ("istanbul", "Europe/Istanbul"),
    ("johannesburg", "Africa/Johannesburg"),
    ("lagos", "Africa/Lagos"),
    ("lisbon", "Europe/Lisbon"),
    ("london", "Europe/London"),
    ("los angeles", "America/Los_Angeles"),
    ("madrid", "Europe/Madrid"),
    ("mexico city", "America/Mexico_City"),
    ("moscow", "Europe/Moscow"),
    ("nairobi", "Africa/Nairobi"),
    ("new york", "America/New_York"),
    ("paris", "Europe/Paris"),
    ("rome", "Europe/Rome"),
    ("san francisco", "America/Los_Angeles"),
    ("sao paulo", "America/Sao_Paulo"),
    ("seoul", "Asia/Seoul"),
    ("shanghai", "Asia/Shanghai"),
    ("singapore", "Asia/Singapore"),
    ("sydney", "Australia/Sydney"),
    ("tokyo", "Asia/Tokyo"),
    ("toronto", "America/Toronto"),
    ("vienna", "Europe/Vienna"),
];

/// The zone that a text names: `Europe/Berlin`, `UTC`, `+02:00`, `Berlin`. Whether a zone with a slash exists is left to the tool.
#[must_use]
pub(super) fn zone(text: &str) -> Option<&str> {
    let offset = text
        .strip_prefix(['+', '-'])
        .is_some_and(|d| !d.is_empty() && d.chars().all(|c| c.is_ascii_digit() || c == ':'));
    let area = text.split_once('/').is_some_and(|(a, b)| {
        a.starts_with(|c: char| c.is_ascii_uppercase())
            && !b.is_empty()
            && text.chars().all(|c| c.is_ascii_alphanumeric() || "/_+-".contains(c))
    });
    if offset || area || ["UTC", "GMT"].contains(&text) {
        return Some(text);
    }
    let lower = text.to_lowercase();
    CITIES.iter().find(|(city, _)| *city == lower).map(|(_, zone)| *zone)
}
