// What whoever watches sees of `video`, played by whatever player, is in `told`; `wanted` is what to
// play, if anything.
"use strict";

const wanted = JSON.parse(decodeURIComponent(location.hash.slice(1)) || "null");
const video = document.querySelector("video");
const now = () => performance.now() / 1000;
const told = {begun_s: now(), started_s: null, ended_s: null, segments: [], stalls: [], remarks: [], problem: null};

const pause = (seconds) => new Promise((then) => setTimeout(then, 1000 * seconds));
const ahead_s = () =>
  video.buffered.length ? video.buffered.end(video.buffered.length - 1) - video.currentTime : 0;

video.addEventListener("playing", () => {
  told.started_s ??= now();
  const last = told.stalls.at(-1);
  if (last && last.ended_s === null) last.ended_s = now();
});
video.addEventListener("waiting", () => {
  if (told.started_s === null || video.ended) return;
  const last = told.stalls.at(-1);
  if (!last || last.ended_s !== null) told.stalls.push({started_s: now(), ended_s: null});
});
video.addEventListener("ended", () => { told.ended_s = now(); });
video.addEventListener("error", () => { told.problem ??= video.error.message; });

function asked(number, representation) {
  if (told.segments.some((each) => each.number === number)) return;
  told.segments.push({number, representation, started_s: now(), ended_s: null, bytes: 0});
}

function came(number, bytes) {
  const segment = told.segments.find((each) => each.number === number);
  if (segment) Object.assign(segment, {ended_s: now(), bytes});
}

function remark(text) {
  told.remarks.push(`${now().toFixed(1)} s, ${ahead_s().toFixed(1)} s ahead: ${text}`);
}
