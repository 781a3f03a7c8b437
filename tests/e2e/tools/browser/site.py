"""A small web site with everything that a browser tool meets, served inside the slot: `python3 site.py PORT`."""

import sys
import threading
import time
from base64 import b64encode
from hashlib import sha1
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

CLICKABLE = """<title>Clickable</title><body><style>
.hand { cursor: pointer } .away { position: absolute; opacity: 0; width: 0; height: 0 }</style><script>
const said = name => { document.title = name; event.stopPropagation(); };
addEventListener('DOMContentLoaded', () => {
    for (const e of document.querySelectorAll('[data-listen]'))
        e.addEventListener(e.dataset.listen, () => said(e.textContent.trim() || e.id));
    document.body.addEventListener('click', () => 0);
    assigned.onclick = () => said('assigned div');
});
</script>
<div onclick="said('attribute div')">attribute div</div>
<div id=assigned>assigned div</div>
<div data-listen=click>listening div</div>
<div data-listen=mousedown>pressed div</div>
<p>some <span onclick="said('attribute span')">attribute span</span> text</p>
<p>some <span data-listen=click>listening span</span> text</p>
<p>some <span class=hand data-listen=click>hand span</span> text</p>
<ul><li onclick="said('attribute li')">attribute li</li><li data-listen=click>listening li</li></ul>
<h3 onclick="said('attribute h3')">attribute h3</h3><h3 data-listen=click>listening h3</h3>
<p data-listen=click>listening paragraph</p>
<p>some <a onclick="said('attribute a')">attribute a</a> <a data-listen=click>listening a</a></p>
<div tabindex=0 data-listen=focus>focus div</div><p><b tabindex=0 data-listen=focus>focus b</b></p>
<div contenteditable data-listen=focus>editable div</div>
<div><input type=checkbox id=box class=away onchange="said('label box')"><label for=box>label box</label></div>
<label><input type=checkbox style="display: none" onchange="said('label around')">label around</label>
<p><img id=picture src=/pixel.svg width=20 height=20 onclick="said('picture')"></p>
<div id=empty data-listen=click style="width: 20px; height: 20px"></div>
<table><tr><td data-listen=click>listening td</td></tr></table>
<section data-listen=click><div data-listen=click>inner div</div></section>
<div onclick="said('card')">card <button>in card</button></div>
<div class=hand>hand card <span onclick="said('in hand')">in hand</span></div>
<h3><span onclick="said('span in h3')">span in h3</span></h3>
<div onclick="said('around h4')"><h4>around h4</h4></div>
<div><div class=hand onclick="said('wrapped hand')">wrapped hand</div></div>
<x-button onclick="said('custom')">custom</x-button>
<p>plain paragraph</p><ul><li>plain li</li></ul><h3>plain h3</h3>"""
CLICKED = (
    *("attribute div", "assigned div", "listening div", "pressed div", "attribute span", "listening span"),
    *("hand span", "attribute li", "listening li", "attribute h3", "listening h3", "listening paragraph"),
    *("attribute a", "listening a", "focus div", "focus b", "editable div", "label box", "label around"),
    *("listening td", "inner div"),
    *("card", "in hand", "span in h3", "wrapped hand", "custom"),
)

PAGES = {
    "/": """<title>Home</title><h1>Home</h1><nav><a href=/form>Form</a> <a href=/frames>Frames</a>
<a href=/shadow>Shadow</a> <a href=/spa>App</a> <a href=/dialogs>Dialogs</a> <a href=/files>Files</a>
<a href=/console>Console</a> <a href=/canvas>Canvas</a> <a href=/scroll>Scroll</a> <a href=/popup>Popup</a></nav>
<img src=/pixel.svg alt="a dot" width=8 height=8><img src="data:image/gif;base64,R0lGODlhAQABAAAAACw=" alt=inline>""",
    "/form": """<title>Form</title><form action=/sent method=post><label>Name <input name=name value=old></label>
<label>Password <input type=password name=password></label><label>Colour <select name=colour><option>red<option>green
</select></label><label><input type=checkbox name=news> News</label><button>Send</button></form>""",
    "/across": "<title>Across</title><iframe src=/inner></iframe><iframe name=far src=http://127.0.0.1:8123/form></iframe>",
    "/frames": """<title>Frames</title><h1>Outside</h1><iframe title=inner src=/inner></iframe>""",
    "/inner": """<title>Inner</title><button onclick="this.textContent='pressed'">Press</button>
<iframe title=deepest srcdoc="<p>deepest</p>
<button onclick='parent.parent.document.title=8'>Deep</button>"></iframe>""",
    "/shadow": """<title>Shadow</title><my-card></my-card><script>
customElements.define('my-card', class extends HTMLElement { connectedCallback() {
const root = this.attachShadow({mode: 'open'});
root.innerHTML = '<button>In the shadow</button><p>0</p>';
root.querySelector('button').onclick = () => { root.querySelector('p').textContent = 'clicked'; }; } });</script>""",
    "/spa": """<title>App</title><button id=go>Open</button><div id=view>list</div><script>
go.onclick = () => { history.pushState({}, '', '/spa/item'); setTimeout(() => { view.textContent = 'item'; }, 200); };
onpopstate = () => { view.textContent = 'list again'; };</script>""",
    "/dialogs": """<title>Dialogs</title><button onclick="alert('careful')">Alert</button>
<button onclick="document.title = 'said ' + confirm('sure?')">Confirm</button>
<button onclick="document.title = 'said ' + prompt('who?', 'nobody')">Prompt</button>""",
    "/files": """<title>Files</title><a href=/download>Report</a> <a href=/endless>Endless</a>
<a href=/late?to=/download>Late report</a> <a href=/late?to=/form>Late form</a>
<a download href=/late?to=/download>Saved late</a> <a href=/slow>Slow</a>
<a download=made.txt href=data:text/plain,made>Made here</a>
<form action=/upload method=post enctype=multipart/form-data><label>File <input type=file name=file></label>
<button>Upload</button></form>""",
    "/fields": """<title>Fields</title><input type=date aria-label=Day><p id=chosen></p>
<input type=file id=picker style="display: none" onchange="chosen.textContent = this.files[0].name + ' chosen'">
<button onclick="picker.click()">Choose</button><iframe srcdoc="<input type=file aria-label=Framed
onchange='parent.chosen.textContent = this.files[0].name + String.fromCharCode(32) + this.files[0].size'>"></iframe>""",
    "/long": f"<title>Long</title><a download={'文' * 120}.tar.gz href=data:text/plain,made>Long name</a>",
    "/alone": """<title>Alone</title><button>Import</button><p id=chosen></p><script>
document.querySelector('button').onclick = () => { const field = document.createElement('input'); field.type = 'file';
field.onchange = () => { chosen.textContent = field.files[0].name + ' ' + field.isConnected; }; field.click(); };
</script>""",
    "/choices": """<title>Choices</title><select aria-label=One><option>red<option disabled>green</select>
<select aria-label=Some multiple onchange="chosen.textContent = [...this.selectedOptions].map(o => o.label).join()">
<option>red<option>green<option>blue</select><p id=chosen></p>""",
    "/crowded": """<title>Crowded</title><div style="height: 60px; overflow: auto"><ul></ul></div><button>Below</button>
<a href=#dot style="display: inline-block"><img src=/pixel.svg alt="a dot" style="display: block; width: 8px"></a>
<iframe style="border: 3px solid; padding: 20px" srcdoc="<button>Framed</button>"></iframe><script>
for (let i = 0; i < 30; i++) document.querySelector('ul').innerHTML += `<li><a href=#${i}>item ${i}</a>`;</script>""",
    "/hasty": """<title>Hasty</title><iframe srcdoc="<p>inside</p>"></iframe>
<button onclick="document.body.append(document.createElement('iframe'))">Empty</button>
<a href=/form onclick="location = '/shadow'">Twice</a>""",
    "/refreshed": "<title>Refreshed</title><meta http-equiv=refresh content='0;url=/form'>",
    "/replaced": "<title>Replaced</title><script>setTimeout(() => location.replace('/form'), 15)</script>",
    "/restless": """<title>Restless</title><p>here</p><script>
addEventListener('keydown', () => setTimeout(() => location.reload(), Math.random() * 60));</script>""",
    "/live": """<title>Live</title><button onclick="socket.send('again')">Ask</button><div id=heard></div><script>
const socket = new WebSocket(`ws://${location.host}/socket`);
socket.onopen = () => socket.send('hello');
socket.onmessage = ({data}) => heard.append(document.createElement('p'), data);</script>""",
    "/console": """<title>Console</title><script>console.log('hello', 1); console.warn('careful');
setTimeout(() => { throw new Error('it broke'); }, 0);</script>""",
    "/canvas": """<title>Canvas</title><canvas id=c width=200 height=100></canvas><script>
const p = c.getContext('2d'); p.fillStyle = 'rgb(200, 10, 20)'; p.fillRect(0, 0, 200, 100);</script>""",
    "/scroll": """<title>Scroll</title><div id=list></div><script>let n = 0;
const more = () => { for (let i = 0; i < 30; i++) { const p = document.createElement('p'); p.textContent = 'row ' + n++;
list.append(p); } }; more();
addEventListener('scroll', () => { if (scrollY + innerHeight > document.body.scrollHeight - 50) more(); });</script>""",
    "/popup": """<title>Popup</title><a target=_blank href=/form>New tab</a>
<a target=_blank href=/parts>In parts</a>
<button onclick="window.open('/shadow')">Window</button><button onclick="document.open()">Clear</button>""",
    "/fetching": """<title>Fetching</title><script>const later = () => fetch('/late?to=/pixel.svg&seconds=0.12');
</script><button onclick="later().then(later).then(() => { found.textContent = 'found'; })">Find</button>
<button onclick="later().then(() => { location = '/form'; })">Go</button>
<button onclick="document.head.append(Object.assign(document.createElement('script'),
{src: '/late?to=/more.js&seconds=0.12'}))">More</button>
<button onclick="fetch('/slow')">Never</button><p id=found></p>""",
    "/timed": """<title>Timed</title><p id=now>Loading</p><iframe srcdoc="<p id=inner></p>"></iframe><script>
const wait = ms => new Promise(done => setTimeout(done, ms));
(async () => { await wait(1500); now.textContent = 'Almost'; await wait(500); now.hidden = true;
document.querySelector('iframe').contentDocument.getElementById('inner').textContent = 'Ready'; })();</script>""",
    "/mouse": """<title>Mouse</title><style>#menu { display: none; position: absolute; left: 300px }
nav:hover #menu { display: block }</style>
<nav><button>Menu</button><a id=menu href=/form>Hidden entry</a></nav>
<div role=button draggable=true ondragstart="event.dataTransfer.setData('text', 'card')">Card</div>
<div role=button ondragover="event.preventDefault()"
ondrop="this.textContent = 'holds ' + event.dataTransfer.getData('text')">Basket</div>""",
    "/asking": """<title>Asking</title><img src=/pixel.svg alt=dot><script>
fetch('/form?token=' + 'x'.repeat(10)); fetch('/missing'); fetch('http://localhost:1/').catch(() => 0);
</script><form action=/sent><label>Password <input type=password name=password></label><button>Send</button></form>""",
    "/more.js": "found.textContent = 'more'",
    "/huge": """<title>Huge</title><body><script>
for (let i = 0; i < 20000; i++) { const b = document.createElement('button');
b.textContent = 'button ' + i; document.body.append(b); }</script>""",
    "/cookie": "<title>Cookie</title><script>document.cookie = 'who=me; max-age=99'; localStorage.who = 'me'</script>",
    "/eater": """<title>Eater</title><button onclick="const kept = []; for (;;) {
kept.push(new Uint8Array(1 << 24).fill(7)); }">Eat</button>""",
    "/silent/frame": "<title>Shown</title><button>Here</button><iframe src=/slow></iframe>",
    "/silent/nested": "<title>Shown</title><button>Here</button><iframe src=/silent/frame></iframe>",
    "/silent/far": "<title>Shown</title><button>Here</button><iframe src=http://127.0.0.1:8123/slow></iframe>",
    "/silent/busy": "<title>Shown</title><button>Here</button>"
    "<iframe sandbox=allow-scripts srcdoc='<script>for (;;) {}</script>'></iframe>",
    "/silent/script": "<title>Shown</title><button>Here</button><script src=/slow></script><p>rest</p>",
    "/silent/style": "<title>Shown</title><button>Here</button><link rel=stylesheet href=/slow><p>rest</p>",
    "/hidden": "<title>Hidden</title><button>Here</button><iframe src=/slow style='display: none'></iframe>"
    "<iframe src=/slow style='width: 0; height: 0; border: 0'></iframe>",
    "/clickable": CLICKABLE,
    "/hang": '<title>Hang</title><button onclick="for (;;) {}">Hang</button>',
}


LATE_S = 1.0
NOTES: list[str] = []


class Handler(BaseHTTPRequestHandler):
    """Serves PAGES, and a few addresses that do something."""

    def do_GET(self) -> None:
        """Answer a GET request."""
        path = urlsplit(self.path).path
        if path in PAGES:
            self.answer(PAGES[path].encode())
        elif path == "/notes":
            notes = "".join(f"<p>{escape(note)}</p>" for note in NOTES)
            form = "<form action=/notes method=post><label>Note <input name=note></label><button>Add</button></form>"
            self.answer(f"<title>Notes</title>{notes}{form}".encode())
        elif path == "/pixel.svg":
            self.answer(b'<svg xmlns="http://www.w3.org/2000/svg" width="8" height="8"><rect/></svg>', "image/svg+xml")
        elif path == "/paper.pdf":
            self.answer(b"%PDF-1.1", "application/pdf")
        elif path == "/favicon.ico":
            self.answer(b"", "image/x-icon")
        elif path == "/slow":
            time.sleep(1000)
        elif path == "/socket":
            self.converse()
        elif path == "/parts":
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<title>Parts</title><p>the first</p>")
            self.wfile.flush()
            time.sleep(0.3)
            self.wfile.write(b"<p>the rest</p>")
        elif path == "/half":
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            self.wfile.write(b"<title>Half</title><h1>half a page</h1>")
            self.wfile.flush()
            time.sleep(1000)
        elif path == "/download":
            self.answer(b"the report\n", "text/plain", 'attachment; filename="report.txt"')
        elif path == "/endless":
            self.send_response(200)
            self.send_header("Content-Disposition", 'attachment; filename="endless.bin"')
            self.end_headers()
            for _ in range(64):
                self.wfile.write(b"x" * (1 << 20))
        elif path in ("/redirect", "/late"):
            query = parse_qs(urlsplit(self.path).query)
            time.sleep(float(query.get("seconds", [LATE_S])[0]) if path == "/late" else 0)
            self.send_response(302)
            self.send_header("Location", query["to"][0])
            self.end_headers()
        else:
            self.send_error(404)

    def do_POST(self) -> None:
        """Show what was sent."""
        sent = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/upload":
            body = sent.partition(b"\r\n\r\n")[2].partition(b"\r\n--")[0]
            self.answer(b"<title>Uploaded</title><p>" + str(len(body)).encode() + b" bytes: " + body[:50] + b"</p>")
        elif self.path == "/notes":
            NOTES.append(parse_qs(sent.decode())["note"][0])
            self.send_response(303)
            self.send_header("Location", "/notes")
            self.end_headers()
        else:
            fields = [f"<p>{name}={escape(values[0])}</p>" for name, values in parse_qs(sent.decode()).items()]
            self.answer(f"<title>Sent</title>{''.join(fields)}".encode())

    def answer(self, body: bytes, kind: str = "text/html; charset=utf-8", disposition: str = "") -> None:
        """Send a whole answer."""
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        if disposition:
            self.send_header("Content-Disposition", disposition)
        self.end_headers()
        self.wfile.write(body)

    def converse(self) -> None:
        """Answer each short message of a web socket with three, one after the other."""
        key = f"{self.headers['Sec-WebSocket-Key']}258EAFA5-E914-47DA-95CA-C5AB0DC85B11".encode()
        self.send_response(101)
        self.send_header("Upgrade", "websocket")
        self.send_header("Connection", "Upgrade")
        self.send_header("Sec-WebSocket-Accept", b64encode(sha1(key).digest()).decode())
        self.end_headers()
        self.close_connection = True
        while (head := self.rfile.read(2)) and head[0] == 0x81:
            mask = self.rfile.read(4)
            text = bytes(byte ^ mask[at % 4] for at, byte in enumerate(self.rfile.read(head[1] & 0x7F)))
            for number in range(3):
                time.sleep(0.02)
                answer = text + f" {number}".encode()
                self.wfile.write(bytes([0x81, len(answer)]) + answer)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Say nothing."""


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
    server.daemon_threads = True
    print("ready", threading.get_ident(), flush=True)
    server.serve_forever()
