// A small player for media that emu/web/media.py made: segments one after another, as many ahead as the
// buffer may hold, played as soon as the first one is there. With `wanted.cmcd` it says with each request what
// it has in store (CTA-5004), as dash.js and hls.js do where they are told to; with `wanted.hls` it reads the
// playlist of what it plays first.
"use strict";

// Buffer-based rate adaptation (Huang et al., SIGCOMM 2014): the lowest rate while the buffer holds less
// than the reservoir, the highest where it is as full as it gets, in between in proportion.
function representation() {
  if (wanted.fixed !== null) return wanted.fixed;
  const reservoir_s = wanted.segment_s / 2;
  const share = (ahead_s() - reservoir_s) / (wanted.buffer_s - wanted.segment_s - reservoir_s);
  const most = wanted.representations - 1;
  return Math.min(most, Math.max(0, Math.round(share * most)));
}

const session = crypto.randomUUID?.() ?? String(Math.random());

function said(type, chosen) {
  if (!wanted.cmcd) return {};
  const buffer_ms = Math.round(10 * ahead_s()) * 100;
  const object = {ot: type, br: Math.round(wanted.cmcd[chosen] / 1000)};
  if (type === "v") object.d = Math.round(1000 * wanted.segment_s);
  const flat = (pairs) => Object.entries(pairs).map(([key, value]) => `${key}=${value}`).join(",");
  return {
    "CMCD-Object": flat(object),
    "CMCD-Request": `bl=${buffer_ms}` + (told.started_s === null ? ",su" : ""),
    "CMCD-Session": `sf=d,sid="${session}",st=v`,
  };
}

async function fetched(name, type, chosen) {
  for (;;) {
    try {
      const headers = said(type, chosen);
      const answer = await fetch(wanted.folder + name, {cache: "no-store", headers});
      if (answer.ok) return await answer.arrayBuffer();
    } catch (error) {
      // The network failed; whoever watches goes on waiting.
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

// The playlist's segments, by their numbers from 1 on.
async function listed(chosen) {
  const lines = new TextDecoder().decode(await fetched(`media_${chosen}.m3u8`)).split("\n");
  return ["", ...lines.filter((line) => line && !line.startsWith("#"))];
}

async function play() {
  const source = new MediaSource();
  video.src = URL.createObjectURL(source);
  await new Promise((then) => source.addEventListener("sourceopen", then, {once: true}));
  const buffer = source.addSourceBuffer(wanted.mime);
  let current = null, names = null;
  for (let number = 1; number <= wanted.segments; number++) {
    while (ahead_s() + wanted.segment_s > wanted.buffer_s) await pause(0.05);
    const chosen = representation();
    if (chosen !== current) {
      if (wanted.hls) names = await listed(chosen);
      await appended(buffer, await fetched(`init-${chosen}.mp4`, "i", chosen));
      current = chosen;
    }
    const segment = {number, representation: chosen, started_s: now(), ended_s: null, bytes: 0};
    told.segments.push(segment);
    const bytes = await fetched(names ? names[number] : `${chosen}-${number}.m4s`, "v", chosen);
    segment.ended_s = now();
    segment.bytes = bytes.byteLength;
    await appended(buffer, bytes);
    if (number === 1) video.play().catch((error) => { told.problem ??= String(error); });
  }
  source.endOfStream();
}

play().catch((error) => { told.problem ??= String(error); });
