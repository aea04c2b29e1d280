// What the tests look for in an open report. Each gives a list of what is wrong.

const start = (text, most) => [...text].slice(0, most).join("");

// Elements that lie outside the page, or hold more than they show; what scrolls by itself may.
function cut() {
  const wide = document.documentElement.clientWidth;
  const scrolls = (one) => one && (one.classList?.contains("scroll") || scrolls(one.parentElement));
  const spills = (one) => one.clientWidth && one.scrollWidth > one.clientWidth + 1
    && !one.classList.contains("scroll") && !["INPUT", "SELECT"].includes(one.tagName) && !one.closest(".chart");
  return [...document.querySelectorAll("body *")]
    .filter((one) => !one.closest("svg") && !scrolls(one.parentElement) && one.offsetParent)
    .filter((one) => one.getBoundingClientRect().right > wide + 1 || one.getBoundingClientRect().left < -1 || spills(one))
    .map((one) => `${one.tagName}.${one.className}: ${start(one.textContent, 60)}`)
    .concat(document.documentElement.scrollWidth > wide ? ["the page scrolls sideways"] : []);
}

// Texts of charts that stick out of them.
function outside() {
  return [...document.querySelectorAll(".chart")].flatMap((chart) => {
    const edge = chart.getBoundingClientRect();
    const leaves = ({ left, right, top, bottom }) => left < edge.left - 1 || right > edge.right + 1 || bottom > edge.bottom + 1 || top < edge.top - 1;
    return [...chart.querySelectorAll("text")]
      .filter((text) => text.textContent && text.getBoundingClientRect().width && leaves(text.getBoundingClientRect()))
      .map((text) => `${chart.id}: ${text.textContent}`);
  });
}

// Texts with less contrast than WCAG's 4.5 to 1.
function faint() {
  const rgb = (text) => text.match(/[\d.]+/g).map(Number);
  const part = (c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
  const light = (shade) => [0.2126, 0.7152, 0.0722].reduce((sum, weight, n) => sum + weight * part(shade[n] / 255), 0);
  const behind = (one) => {
    const shade = rgb(getComputedStyle(one).backgroundColor);
    return shade.length < 4 || shade[3] === 1 ? shade : behind(one.parentElement);
  };
  const contrast = (one) => {
    const [a, b] = [light(rgb(getComputedStyle(one).color)), light(behind(one))];
    return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  };
  return [...document.querySelectorAll("h1, h2, h3, p, td, th, dt, dd, li, button, span, b, i")]
    .filter((one) => one.offsetParent && one.textContent.trim() && one.className !== "key" && !one.closest(".legend i") && contrast(one) < 4.5)
    .map((one) => `${contrast(one).toFixed(2)} ${one.tagName} ${start(one.textContent, 40)}`);
}

// Every cell of the first run's timeline: id, iteration, what it did, and why.
async function cells() {
  const line = await Timeline.of(JSON.parse(document.getElementById("data").textContent).runs[0]);
  const { kind } = line.segments;
  const found = [];
  for (let row = 0; row < line.rows; row++) {
    for (let i = line.of[row]; i < line.of[row + 1]; i++) {
      for (let n = line.first[i]; n < line.last[i]; n++) found.push([line.requests.id[row], n, line.about.kinds[kind[i]], line.why(i, row, n)]);
    }
  }
  return found;
}
