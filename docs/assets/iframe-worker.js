/* Browsers start no worker for a page that was opened as a file. There the search runs in a
   hidden frame instead, which is asked and answers by the same messages. */
if (location.protocol === "file:") {
  class IFrameWorker extends EventTarget {
    constructor(url) {
      super();
      this.waiting = [];
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.frame.title = "search";
      this.frame.srcdoc =
        "<!doctype html><script>" +
        "postMessage = function (message) { parent.postMessage({ worker: true, message: message }, '*'); };" +
        "importScripts = function () { return Promise.all([].map.call(arguments, function (url) {" +
        " return new Promise(function (done, failed) { var s = document.createElement('script');" +
        " s.src = url; s.onload = done; s.onerror = failed; document.head.appendChild(s); }); })); };" +
        "</" + "script><script src='" + new URL(url, location.href).href.replace(/'/g, "%27") + "'></" + "script>";
      this.frame.addEventListener("load", () => {
        this.ready = true;
        this.waiting.forEach((message) => this.send(message));
      });
      window.addEventListener("message", (event) => {
        if (event.source === this.frame.contentWindow && event.data && event.data.worker) {
          const answer = new MessageEvent("message", { data: event.data.message });
          this.dispatchEvent(answer);
          if (this.onmessage) this.onmessage(answer);
        }
      });
      document.body.appendChild(this.frame);
    }
    send(message) {
      this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data: message }));
    }
    postMessage(message) {
      if (this.ready) this.send(message);
      else this.waiting.push(message);
    }
    terminate() {
      this.frame.remove();
    }
  }
  window.IFrameWorker = window.Worker = IFrameWorker;
}
