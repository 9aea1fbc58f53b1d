"""The script of a report: it shows the values under the pointer.

All it reads is what the charts carry; it asks for nothing and changes nothing else. A page's policy names its digest,
so no other script runs. It is written without < and &, so that the page stays well-formed XML.
"""

from typing import Final

SCRIPT: Final = """
(function () {
  "use strict";
  var space = "http://www.w3.org/2000/svg";
  var tip = document.createElement("div");
  tip.className = "tip";
  tip.hidden = true;
  document.body.appendChild(tip);

  function digits(value) {
    var size = Math.abs(value);
    return size >= 100 ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(3)));
  }
  function text(value, kind) {
    if (kind === "ms") {
      return value >= 1000 ? digits(value / 1000) + " s" : value >= 1 || !value ? digits(value) + " ms"
        : digits(value * 1000) + " \u00b5s";
    }
    if (kind === "percent") { return digits(value) + " %"; }
    if (kind === "percentile") { return Number((100 * (1 - Math.pow(10, -value))).toPrecision(6)) + " %"; }
    if (kind === "time") {
      var whole = Math.round(value);
      return value >= 60 ? Math.floor(whole / 60) + "m" + whole % 60 + "s" : value.toFixed(1) + " s";
    }
    return digits(value);
  }
  function points(path) {
    return path.getAttribute("data-values").split(" ").map(function (pair) { return pair.split(",").map(Number); });
  }
  function nearest(line, at) {
    var best = null;
    line.points.forEach(function (point, number) {
      var away = Math.abs(point[0] - at), next = line.points[number + 1];
      if (best === null || best.away > away) { best = { away: away, value: point[1] }; }
      // What was planned is known between its points too.
      if (line.planned ? next ? at >= point[0] ? next[0] > at : false : false : false) {
        best = { away: 0, value: point[1] + (next[1] - point[1]) * (at - point[0]) / (next[0] - point[0]) };
      }
    });
    return best;
  }
  function row(paint, words) {
    var line = document.createElement("div"), dot = document.createElement("i");
    if (paint) { dot.className = "dot " + paint; line.appendChild(dot); }
    line.appendChild(document.createTextNode(words));
    tip.appendChild(line);
  }

  document.querySelectorAll("svg.frame[data-x]").forEach(function (frame) {
    var scale = frame.getAttribute("data-x").split(" "), kind = frame.getAttribute("data-y");
    var low = Number(scale[1]), high = Number(scale[2]), lines = null;
    var mark = document.createElementNS(space, "line");
    mark.setAttribute("class", "pointer");
    mark.setAttribute("y1", "0");
    mark.setAttribute("y2", "100%");
    mark.style.display = "none";
    frame.appendChild(mark);

    function hide() { tip.hidden = true; mark.style.display = "none"; }
    function show(event) {
      lines = lines || Array.prototype.map.call(frame.querySelectorAll("path[data-values]"), function (path) {
        var paint = path.getAttribute("class").split(" ")[1];
        return { paint: paint, planned: paint === "plan", name: path.getAttribute("data-name"), points: points(path) };
      });
      var box = frame.getBoundingClientRect();
      var share = Math.max(0, Math.min(1, (event.clientX - box.left) / box.width));
      var at = scale[3] === "log" ? low * Math.pow(high / low, share) : low + (high - low) * share;
      tip.textContent = "";
      row("", text(at, scale[0]));
      lines.forEach(function (line) {
        var found = nearest(line, share * 1000);
        if (found ? 25 >= found.away : false) { row(line.paint, line.name + " " + text(found.value, kind)); }
      });
      mark.style.display = "";
      mark.setAttribute("x1", share * 100 + "%");
      mark.setAttribute("x2", share * 100 + "%");
      tip.hidden = false;
      var right = event.clientX + 14, room = document.documentElement.clientWidth - tip.offsetWidth - 6;
      tip.style.left = (right > room ? Math.max(6, event.clientX - tip.offsetWidth - 14) : right) + "px";
      tip.style.top = Math.max(6, event.clientY - tip.offsetHeight - 10) + "px";
    }
    frame.parentNode.addEventListener("pointermove", show);
    frame.parentNode.addEventListener("pointerdown", show);
    frame.parentNode.addEventListener("pointerleave", hide);
  });
}());
"""
