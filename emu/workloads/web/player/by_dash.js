// The same media by dash.js with its own settings, but for how much it keeps ahead.
"use strict";

function play() {
  const player = dashjs.MediaPlayer().create();
  player.updateSettings({
    streaming: {
      buffer: {
        stableBufferTime: wanted.buffer_s,
        bufferTimeAtTopQuality: wanted.buffer_s,
        bufferTimeAtTopQualityLongForm: wanted.buffer_s,
      },
      cmcd: {enabled: Boolean(wanted.cmcd)},
    },
  });
  const events = dashjs.MediaPlayer.events;
  const is_segment = ({request}) => request?.type === "MediaSegment";
  player.on(events.FRAGMENT_LOADING_STARTED, (event) => {
    if (is_segment(event)) asked(event.request.index + 1, Number(event.request.representationId));
  });
  player.on(events.FRAGMENT_LOADING_COMPLETED, (event) => {
    if (!is_segment(event)) return;
    if (event.error) remark(`${event.error.message} ${event.request.index + 1}`);
    else came(event.request.index + 1, event.response?.byteLength ?? event.request.bytesTotal);
  });
  player.on(events.FRAGMENT_LOADING_ABANDONED, (event) => {
    if (is_segment(event)) remark(`abandoned ${event.request.index + 1}`);
  });
  player.on(events.ERROR, ({error}) => {
    remark(`${error.code} ${error.message}`);
    told.problem ??= error.message;
  });
  player.initialize(video, `${wanted.folder}all.mpd`, true);
}

if (wanted) play();
