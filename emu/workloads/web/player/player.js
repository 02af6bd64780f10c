// A small player for media that emu/workloads/web/media.py made. It fetches segments one after another, as many
// ahead as the buffer may hold, and plays as soon as the first one is there. `wanted` says what to play, if
// anything; `told` holds what a person sees of `video`.
"use strict";

const wanted = JSON.parse(decodeURIComponent(location.hash.slice(1)) || "null");
const video = document.querySelector("video");
const now = () => performance.now() / 1000;
const told = {begun_s: now(), started_s: null, ended_s: null, segments: [], stalls: [], problem: null};

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

// Buffer-based rate adaptation (Huang et al., SIGCOMM 2014): the lowest rate while the buffer holds less
// than the reservoir, the highest where it is as full as it gets, in between in proportion.
function representation() {
  if (wanted.fixed !== null) return wanted.fixed;
  const reservoir_s = wanted.segment_s / 2;
  const share = (ahead_s() - reservoir_s) / (wanted.buffer_s - wanted.segment_s - reservoir_s);
  const most = wanted.representations - 1;
  return Math.min(most, Math.max(0, Math.round(share * most)));
}

async function fetched(name) {
  for (;;) {
    try {
      const answer = await fetch(wanted.folder + name, {cache: "no-store"});
      if (answer.ok) return await answer.arrayBuffer();
    } catch (error) {
      // The network failed: ask again.
    }
    await pause(0.25);
  }
}

function appended(buffer, bytes) {
  return new Promise((then, failed) => {
    buffer.addEventListener("updateend", then, {once: true});
    buffer.addEventListener("error", failed, {once: true});
    buffer.appendBuffer(bytes);
  });
}

async function play() {
  const source = new MediaSource();
  video.src = URL.createObjectURL(source);
  await new Promise((then) => source.addEventListener("sourceopen", then, {once: true}));
  const buffer = source.addSourceBuffer(wanted.mime);
  let current = null;
  for (let number = 1; number <= wanted.segments; number++) {
    while (ahead_s() + wanted.segment_s > wanted.buffer_s) await pause(0.05);
    const chosen = representation();
    if (chosen !== current) {
      await appended(buffer, await fetched(`init-${chosen}.mp4`));
      current = chosen;
    }
    const segment = {number, representation: chosen, started_s: now(), ended_s: null, bytes: 0};
    told.segments.push(segment);
    const bytes = await fetched(`${chosen}-${number}.m4s`);
    segment.ended_s = now();
    segment.bytes = bytes.byteLength;
    await appended(buffer, bytes);
    if (number === 1) video.play().catch((error) => { told.problem ??= String(error); });
  }
  source.endOfStream();
}

play().catch((error) => { told.problem ??= String(error); });
