// The same media by hls.js with its own settings, but for how much it keeps ahead.
"use strict";

function play() {
  const player = new Hls({
    maxBufferLength: wanted.buffer_s,
    maxMaxBufferLength: wanted.buffer_s,
    ...(wanted.cmcd ? {cmcd: {}} : {}),
  });
  const representation_of = (fragment) => Math.max(0, fragment.level);
  player.on(Hls.Events.FRAG_LOADING, (_, {frag}) => {
    if (frag.sn !== "initSegment") asked(frag.sn, representation_of(frag));
  });
  player.on(Hls.Events.FRAG_LOADED, (_, {frag}) => {
    // Its bytes are another thread's by now.
    if (frag.sn !== "initSegment") came(frag.sn, frag.stats.loaded);
  });
  player.on(Hls.Events.ERROR, (_, {details, fatal, frag}) => {
    remark(`${details}${frag ? ` ${frag.sn}` : ""}`);
    if (fatal) told.problem ??= details;
  });
  player.on(Hls.Events.MANIFEST_PARSED, () => {
    video.play().catch((error) => { told.problem ??= String(error); });
  });
  player.loadSource(`${wanted.folder}master.m3u8`);
  player.attachMedia(video);
}

if (wanted) play();
