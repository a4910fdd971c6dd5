//! Side effects and version markers: values recorded for replay.

use crate::payload::{Codec, Payload};

use super::super::command::VersionMarker;
use super::super::event::{SideEffectRecorded, VersionMarkerRecorded};
use super::draft::Draft;
use super::outcome::Refusal;
use super::steps::invalid;

pub(super) fn side_effect(draft: &mut Draft<'_>, result: Payload) {
    let sequence = draft.state.next_step;
    draft.emit(SideEffectRecorded {
        sequence,
        result,
        payload_codec: Codec::Avro,
    });
}

pub(super) fn version(draft: &mut Draft<'_>, marker: VersionMarker) -> Result<(), Refusal> {
    if !(marker.min_supported..=marker.max_supported).contains(&marker.version) {
        return Err(invalid(&format!(
            "version {} of change {} is outside its supported range {} to {}",
            marker.version, marker.change_id, marker.min_supported, marker.max_supported
        )));
    }
    let sequence = draft.state.next_step;
    draft.emit(VersionMarkerRecorded {
        sequence,
        change_id: marker.change_id,
        version: marker.version,
        min_supported: marker.min_supported,
        max_supported: marker.max_supported,
    });
    Ok(())
}
