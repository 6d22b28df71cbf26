//! `decoder FILE`: the events of a log file, one a line: nanoseconds, level, text.

use defmt_decoder::Table;
use serde_json::{Value, json};
use std::error::Error;

/// A record's kind, thread and length.
const RECORD_HEAD_BYTES: usize = 7;
const EVENT: u8 = 2;

/// The decoder's table, from what the file says of its events.
fn table(head: &Value) -> Result<Table, Box<dyn Error>> {
    let entry = |tag: &str, text: &str| {
        json!({ "string": { "tag": tag, "string": text }, "raw_symbol": "" })
    };
    let mut entries = serde_json::Map::new();
    for event in head["events"].as_array().ok_or("no events")? {
        let level = event["level"].as_str().ok_or("an event without a level")?;
        let tag = level[..1].to_uppercase() + &level[1..];
        let text = event["format"].as_str().ok_or("an event without a format")?;
        entries.insert(event["index"].to_string(), entry(&tag, text));
    }
    Ok(serde_json::from_value(json!({
        "timestamp": entry("Timestamp", "{=u64}"),
        "entries": entries,
        "bitflags": {},
        "encoding": "Raw",
    }))?)
}

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args().nth(1).ok_or("which file?")?;
    let file = std::fs::read(path)?;
    let (start, rest) = file.split_first_chunk::<12>().ok_or("no head")?;
    let (head, mut rest) = rest
        .split_at_checked(u32::from_le_bytes(start[8..].try_into()?) as usize)
        .ok_or("half a head")?;
    let table = table(&serde_json::from_slice(head)?)?;
    while let Some((head, after)) = rest.split_first_chunk::<RECORD_HEAD_BYTES>() {
        let len = usize::from(u16::from_le_bytes([head[5], head[6]]));
        let (content, after) = after.split_at_checked(len).ok_or("half a record")?;
        if head[0] == EVENT {
            let (frame, used) = table.decode(content)?;
            if used != len {
                return Err(format!("a frame of {used} bytes in a record of {len}").into());
            }
            let at = frame.display_timestamp().ok_or("no time")?;
            let level = frame.level().ok_or("no level")?;
            println!("{at} {} {}", level.as_str(), frame.display_message());
        }
        rest = after;
    }
    Ok(())
}
