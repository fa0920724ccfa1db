// Open folded tables for printing, and fold them again afterwards.
(function () {
  var opened = [];
  window.addEventListener("beforeprint", function () {
    var folded = document.querySelectorAll("details:not([open])");
    opened = Array.prototype.slice.call(folded);
    opened.forEach(function (one) { one.setAttribute("open", ""); });
  });
  window.addEventListener("afterprint", function () {
    opened.forEach(function (one) { one.removeAttribute("open"); });
    opened = [];
  });
})();
