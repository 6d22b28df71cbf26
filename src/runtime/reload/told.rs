//! What came of reloads, as clients are told.

use super::{ReloadError, Reloaded};
use crate::limits::FRAME_BODY_BYTES_MAX;
use serde_json::{Value, json};

/// The answer to a request to reload: an array with an object for each model, which fits a frame's body. Where
/// it would not, reasons that take more than their model's even share of it are cut, and say so.
pub(super) fn told(results: Vec<(String, Result<Reloaded, ReloadError>)>) -> String {
    let mut all: Vec<Value> = results.into_iter().map(one).collect();
    let len = all.iter().map(|model| model.to_string().len() + 1).sum::<usize>() + 1;
    if len > FRAME_BODY_BYTES_MAX {
        // Without the brackets and a comma for each.
        let share = (FRAME_BODY_BYTES_MAX - 2) / all.len() - 1;
        all.iter_mut().for_each(|model| shorten(model, share));
    }
    Value::from(all).to_string()
}

/// What came of one reload.
fn one((model, result): (String, Result<Reloaded, ReloadError>)) -> Value {
    match result {
        Ok(done) => json!({
            "model": model,
            "ok": true,
            "changed": done.changed,
            "version": done.version,
            "version_hash": done.version_hash,
            "took_ns": done.took_ns.0,
        }),
        Err(error) => json!({
            "model": model,
            "ok": false,
            "reason": error.reason(),
            "error": error.to_string(),
        }),
    }
}

/// Cuts the text of a refusal so that its object is at most `share` bytes long.
fn shorten(model: &mut Value, share: usize) {
    let len = model.to_string().len();
    let Some(Value::String(error)) = model.get_mut("error") else { return };
    if len <= share {
        return;
    }
    let json_len = |c: char| Value::from(c.to_string()).to_string().len() - 2;
    let note = |bytes: usize| format!(" ... and {bytes} bytes more");
    // What is cut is less than all, so its number is not longer.
    let others = len - error.chars().map(json_len).sum::<usize>() + note(error.len()).len();
    let mut room = share.saturating_sub(others);
    let fits = |c: &char| {
        let rest = room.checked_sub(json_len(*c));
        room = rest.unwrap_or(0);
        rest.is_some()
    };
    let cut: usize = error.chars().take_while(fits).map(char::len_utf8).sum();
    let more = note(error.len() - cut);
    error.truncate(cut);
    error.push_str(&more);
}
