// The mean time that a frame of a line with 10,000 snapshots takes, in milliseconds.
(async () => {
  const { TimeLine } = await import("/page/line.js");
  const line = new TimeLine("many", { onPick() {} });
  document.querySelector("main").append(line.element);
  const now = Date.now();
  const snapshots = Array.from({ length: 10_000 }, (_, at) => ({ at: now - (10_000 - at) * 3_600_000, name: `s${at}` }));
  line.set({ snapshots, marks: [], future: [], window: { start: now - 1e9 }, image: null });
  const frames = 200;
  const before = performance.now();
  for (let frame = 0; frame < frames; frame += 1) {
    line.zoom(frame % 3 === 0 ? 0.3 : 1.9, 300);
    line.paint();
    line.tell();
  }
  // Reading a pixel waits for all that was drawn.
  line.canvas.getContext("2d").getImageData(0, 0, 1, 1);
  const took = performance.now() - before;
  line.gone = true;
  line.element.remove();
  return took / frames;
})();
