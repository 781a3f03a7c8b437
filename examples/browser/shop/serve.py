"""A small web shop for browser tasks. `python3 serve.py` starts it on port 8000 and returns when it accepts
connections.

It needs Python 3.9 or newer and nothing else. Changes by visitors are stored in `state.json` next to this file.
"""

import html
import json
import os
import subprocess
import sys
import time
from email.parser import BytesParser
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock
from urllib.parse import parse_qs, urlsplit

HERE = Path(__file__).resolve().parent
STATE = HERE / "state.json"
PORT, PER_PAGE = 8000, 8
KINDS = ("Tent", "Stove", "Rope", "Lamp", "Boots", "Compass", "Kettle", "Jacket")
NAMES = ("Fjord", "Summit", "Birch", "Aurora", "Granite")
PRODUCTS = [
    {"id": at + 1, "name": f"{NAMES[at % 5]} {KINDS[at % 8]}", "kind": KINDS[at % 8], "price": 12 + (at * 37) % 90}
    for at in range(40)
]
NEW = {
    "cart": [],
    "orders": [
        {"id": 1, "customer": "Ada", "total": 120, "note": ""},
        {"id": 2, "customer": "Ben", "total": 75, "note": ""},
        {"id": 3, "customer": "Cleo", "total": 310, "note": ""},
    ],
    "profile": {"name": "Kim", "email": "kim@example.org", "newsletter": False, "colour": "blue"},
    "tickets": [],
    "reviews": [],
    "notes": "",
    "saved": [],
    "votes": [],
    "uploads": {},
    "bookings": [],
}
LOCK = Lock()


def state():
    return json.loads(STATE.read_text("utf-8"))


def change(update):
    """Let a function change the state."""
    with LOCK:
        data = state()
        update(data)
        STATE.with_suffix(".new").write_text(json.dumps(data), "utf-8")
        os.replace(STATE.with_suffix(".new"), STATE)


def page(title, body):
    links = " ".join(
        f"<a href=/{name}>{name.capitalize()}</a>"
        for name in ("catalogue", "cart", "account", "support", "orders", "news", "notes", "booking", "poll", "status")
    )
    return f"<!doctype html><title>{title} - Fjord Outfitters</title><nav>{links}</nav><h1>{title}</h1>{body}"


def catalogue(query):
    products = [item for item in PRODUCTS if query.get("q", "").lower() in item["name"].lower()]
    order = query.get("sort", "id")
    products.sort(key=lambda item: item[order] if order in ("price", "name") else item["id"])
    at = int(query.get("page", 1))
    rows = "".join(
        f"<tr><td><a href=/product/{item['id']}>{item['name']}</a><td>{item['kind']}<td>{item['price']} EUR</tr>"
        for item in products[(at - 1) * PER_PAGE : at * PER_PAGE]
    )
    kept_query = f"q={html.escape(query.get('q', ''))}&sort={html.escape(order)}"
    more = f"<a href='/catalogue?{kept_query}&page={at + 1}'>Next page</a>" if at * PER_PAGE < len(products) else ""
    form = f"<form><label>Search <input name=q value='{html.escape(query.get('q', ''))}'></label><button>Find</button></form>"
    sorts = "<a href='/catalogue?sort=price'>Sort by price</a> <a href='/catalogue?sort=name'>Sort by name</a>"
    return page("Catalogue", f"{form}{sorts}<table>{rows}</table><p>{len(products)} products, page {at}</p>{more}")


def product(number):
    item = PRODUCTS[int(number) - 1]
    sizes = "".join(f"<option>{size}</option>" for size in ("small", "medium", "large"))
    return page(
        item["name"],
        f"""<p>Price: {item["price"]} EUR</p><form action=/cart method=post><input type=hidden name=id value={item["id"]}>
<label>Size <select name=size>{sizes}</select></label><label>Quantity <input type=number name=count value=1></label>
<button>Add to cart</button></form><h2>Reviews</h2><star-review product={item["id"]}></star-review><script>
customElements.define('star-review', class extends HTMLElement {{ connectedCallback() {{
  const root = this.attachShadow({{mode: 'open'}}); let stars = 0;
  root.innerHTML = [1, 2, 3, 4, 5].map(n => `<button data-n=${{n}}>${{n}} stars</button>`).join('') +
    '<label>Review <textarea></textarea></label><button id=send>Send review</button><p role=status></p>';
  root.querySelectorAll('[data-n]').forEach(b => b.onclick = () => {{ stars = +b.dataset.n; }});
  root.querySelector('#send').onclick = async () => {{
    await fetch('/reviews', {{method: 'POST', body: JSON.stringify({{
      product: +this.getAttribute('product'), stars, text: root.querySelector('textarea').value}})}});
    root.querySelector('p').textContent = 'Thank you';
  }}; }} }});</script>""",
    )


def cart():
    data = state()["cart"]
    rows = "".join(
        f"""<tr><td>{PRODUCTS[line["id"] - 1]["name"]}<td>{html.escape(line["size"])}<td>{line["count"]}<td>
<form action=/cart/remove method=post onsubmit="return confirm('Remove it?')"><input type=hidden name=at value={at}>
<button>Remove {PRODUCTS[line["id"] - 1]["name"]}</button></form></tr>"""
        for at, line in enumerate(data)
    )
    total = sum(PRODUCTS[line["id"] - 1]["price"] * line["count"] for line in data)
    return page("Cart", f"<table>{rows}</table><p>Total: {total} EUR</p><a href=/checkout>Checkout</a>")


CHECKOUT = """<div id=app></div><script>
const order = {}; const app = document.getElementById('app');
const steps = [
  () => { app.innerHTML = '<h2>Step 1: address</h2><label>Name <input id=n></label><label>Street <input id=s></label>' +
    '<button>Continue</button>'; app.querySelector('button').onclick = () => {
    order.customer = n.value; order.street = s.value; if (n.value && s.value) go(1); else alert('Both are needed'); }; },
  () => { app.innerHTML = '<h2>Step 2: shipping</h2><label><input type=radio name=h value=standard>Standard</label>' +
    '<label><input type=radio name=h value=express>Express</label><button>Continue</button>';
    app.querySelector('button').onclick = () => { order.shipping = app.querySelector(':checked')?.value; go(2); }; },
  () => { app.innerHTML = '<h2>Step 3: confirm</h2><label><input type=checkbox id=t>I accept the terms</label>' +
    '<button disabled>Place order</button>'; const b = app.querySelector('button');
    t.onchange = () => { b.disabled = !t.checked; }; b.onclick = async () => {
    const told = await (await fetch('/checkout', {method: 'POST', body: JSON.stringify(order)})).json();
    app.innerHTML = '<h2>Order placed</h2><p>Your order number is F-' + told.id + '</p>'; }; } ];
const go = at => { location.hash = at; steps[at](); }; go(0);</script>"""

PAGES = {
    "/": page("Welcome", "<p>Everything for the trail.</p>"),
    "/checkout": page("Checkout", CHECKOUT),
    "/login": page(
        "Login",
        """<form action=/login method=post><label>User <input name=user></label>
<label>Password <input type=password name=password></label><button>Log in</button></form>""",
    ),
    "/support": page(
        "Support", "<p>Write to us:</p><iframe src=/support/form title=Form width=600 height=300></iframe>"
    ),
    "/support/form": """<form action=/support method=post><label>Subject <input name=subject></label><label>Message
<textarea name=message></textarea></label><label>Priority <select name=priority><option>low<option>normal<option>urgent
</select></label><button>Send message</button></form>""",
    "/news": page(
        "News",
        """<div id=list></div><script>let n = 0; const more = () => { for (let i = 0; i < 20 && n < 120; i++) {
const p = document.createElement('p'), at = ++n; p.textContent = 'News item ' + at + ' '; const b = document.createElement('button');
b.textContent = 'Save item ' + at; b.onclick = () => fetch('/saved', {method: 'POST', body: String(at)}); p.append(b);
p.style.height = '40px'; list.append(p); } }; more();
addEventListener('scroll', () => { if (scrollY + innerHeight > document.body.scrollHeight - 100) more(); });</script>""",
    ),
    "/notes": page(
        "Notes",
        """<p>Control+s saves.</p><div contenteditable role=textbox aria-label=Notes style="min-height:4em"></div>
<p role=status></p><script>const box = document.querySelector('[contenteditable]');
addEventListener('keydown', async e => { if (e.ctrlKey && e.key === 's') { e.preventDefault();
await fetch('/notes', {method: 'POST', body: box.innerText}); document.querySelector('[role=status]').textContent = 'saved'; } });
</script>""",
    ),
    "/booking": page(
        "Booking",
        """<p>A guide shows you the trail.</p><form action=/booking method=post><label>Day <input type=date name=day>
</label><label>People <input type=range name=people min=1 max=9 value=1></label><fieldset><legend>Extras</legend><label>
<input type=checkbox name=extra value=lunch>Lunch</label><label><input type=checkbox name=extra value=photos>Photos</label>
<label><input type=checkbox name=extra value=insurance checked>Insurance</label></fieldset><button>Book</button></form>""",
    ),
    "/poll": page(
        "Poll",
        """<p>Where to next?</p><button disabled>Vote for lakes</button><button disabled>Vote for peaks</button><p role=status>
Loading the poll</p><script>setTimeout(() => { document.querySelector('[role=status]').textContent = 'The poll is open';
document.querySelectorAll('button').forEach(b => { b.disabled = false; b.onclick = async () => { await fetch('/votes',
{method: 'POST', body: b.textContent.split(' ').pop()}); b.textContent = 'Thank you'; }; }); }, 700);</script>""",
    ),
    "/status": page(
        "Status",
        """<p>The state of our systems is in the console.</p><button onclick="window.open('/status/report')">Report</button>
<a href=/old/price-list>Price list</a> <a href=/slow>Audit</a><script>console.log('build 7f3a'); console.warn('disk almost full');
setTimeout(() => { throw new Error('payment provider E-4711'); }, 0);</script>""",
    ),
    "/status/report": page("Report", "<p>Uptime 99.2 percent</p><table><tr><td>Requests<td>18204</tr></table>"),
    "/price-list": page("Price list", "<p>The list of 2026: <a href=/prices.csv>download prices.csv</a></p>"),
}


def account():
    profile = state()["profile"]
    checked = "checked" if profile["newsletter"] else ""
    options = "".join(
        f"<option {'selected' if colour == profile['colour'] else ''}>{colour}</option>"
        for colour in ("blue", "green", "red")
    )
    return page(
        "Account",
        f"""<form action=/account method=post><label>Name <input name=name value="{html.escape(profile["name"])}"></label>
<label>Email <input type=email name=email value="{html.escape(profile["email"])}"></label><label>Colour
<select name=colour>{options}</select></label><label><input type=checkbox name=newsletter {checked}>Newsletter</label>
<button>Save</button></form><form action=/avatar method=post enctype=multipart/form-data><label>Avatar
<input type=file name=file></label><button>Upload</button></form>""",
    )


def orders():
    rows = "".join(
        f"""<tr><td>{order["id"]}<td>{html.escape(order["customer"])}<td>{order["total"]} EUR<td>{html.escape(order["note"])}<td>
<button onclick="note({order["id"]})">Note on {order["id"]}</button><button onclick="drop({order["id"]})">Delete {order["id"]}</button>"""
        for order in state()["orders"]
    )
    return page(
        "Orders",
        f"""<table>{rows}</table><a href=/orders.csv>Export</a><script>
const send = async body => {{ await fetch('/orders', {{method: 'POST', body: JSON.stringify(body)}}); location.reload(); }};
const note = id => {{ const text = prompt('Note for order ' + id); if (text !== null) send({{id, text}}); }};
const drop = id => {{ if (confirm('Delete order ' + id + '?')) send({{id}}); }};</script>""",
    )


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        parts = urlsplit(self.path)
        path, query = parts.path, {name: values[0] for name, values in parse_qs(parts.query).items()}
        if path == "/account" and "session=kim" not in self.headers.get("Cookie", ""):
            self.go("/login")
        elif path.startswith("/old/"):
            self.go("/" + path.removeprefix("/old/"))
        elif path in PAGES:
            self.answer(PAGES[path])
        elif path == "/catalogue":
            self.answer(catalogue(query))
        elif path.startswith("/product/"):
            self.answer(product(path.rpartition("/")[2]))
        elif path in ("/cart", "/account", "/orders"):
            self.answer({"/cart": cart, "/account": account, "/orders": orders}[path]())
        elif path == "/slow":
            time.sleep(2)
            self.answer(page("Audit", "<p>The audit code is SLOW-88</p>"))
        elif path == "/orders.csv":
            lines = [
                "id,customer,total",
                *(f"{item['id']},{item['customer']},{item['total']}" for item in state()["orders"]),
            ]
            self.answer("\n".join(lines) + "\n", "text/csv", "orders.csv")
        elif path == "/prices.csv":
            lines = ["name,price", *(f"{item['name']},{item['price']}" for item in PRODUCTS)]
            self.answer("\n".join(lines) + "\n", "text/csv", "prices.csv")
        else:
            self.send_error(404)

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        text = "" if self.path == "/avatar" else body.decode("utf-8")
        form = parse_qs(text) if self.headers.get("Content-Type", "").startswith("application/x-www") else {}
        fields = {name: values[0] for name, values in form.items()}
        then = getattr(self, "post" + self.path.replace("/", "_"))(fields, form, text or body)
        if then is not None:
            self.go(then)

    def post_cart(self, fields, form, body):
        line = {"id": int(fields["id"]), "size": fields["size"], "count": int(fields["count"])}
        change(lambda data: data["cart"].append(line))
        return "/cart"

    def post_cart_remove(self, fields, form, body):
        change(lambda data: data["cart"].pop(int(fields["at"])))
        return "/cart"

    def post_checkout(self, fields, form, body):
        def place(data):
            total = sum(PRODUCTS[line["id"] - 1]["price"] * line["count"] for line in data["cart"])
            number = max((order["id"] for order in data["orders"]), default=0) + 1
            data["orders"].append({"id": number, "total": total, "note": "", "lines": data["cart"], **json.loads(body)})
            data["cart"] = []

        change(place)
        self.answer(json.dumps({"id": state()["orders"][-1]["id"]}), "application/json")

    def post_login(self, fields, form, body):
        if (fields.get("user"), fields.get("password")) != ("kim", "trail mix"):
            self.answer(page("Login failed", "<a href=/login>Try again</a>"))
            return None
        self.go("/account", "session=kim")
        return None

    def post_account(self, fields, form, body):
        change(lambda data: data["profile"].update(fields, newsletter="newsletter" in fields))
        return "/account"

    def post_avatar(self, fields, form, body):
        head = f"Content-Type: {self.headers['Content-Type']}\r\n\r\n".encode()
        part = BytesParser().parsebytes(head + body).get_payload()[0]
        change(lambda data: data["uploads"].update({part.get_filename(): part.get_payload(decode=True).decode()}))
        return "/account"

    def post_support(self, fields, form, body):
        change(lambda data: data["tickets"].append(fields))
        self.answer("<p>Ticket received</p>")

    def post_booking(self, fields, form, body):
        booked = {"day": fields.get("day"), "people": int(fields["people"]), "extras": form.get("extra", [])}
        change(lambda data: data["bookings"].append(booked))
        self.answer(page("Booked", f"<p>See you on {html.escape(str(booked['day']))}</p>"))

    def post_reviews(self, fields, form, body):
        change(lambda data: data["reviews"].append(json.loads(body)))
        self.answer("ok")

    def post_orders(self, fields, form, body):
        request = json.loads(body)

        def work(data):
            for order in [order for order in data["orders"] if order["id"] == request["id"]]:
                if "text" in request:
                    order["note"] = request["text"]
                else:
                    data["orders"].remove(order)

        change(work)
        self.answer("ok")

    def post_notes(self, fields, form, body):
        change(lambda data: data.update(notes=body))
        self.answer("ok")

    def post_saved(self, fields, form, body):
        change(lambda data: data["saved"].append(int(body)))
        self.answer("ok")

    def post_votes(self, fields, form, body):
        change(lambda data: data["votes"].append(body))
        self.answer("ok")

    def go(self, where, cookie=None):
        self.send_response(303)
        if cookie:
            self.send_header("Set-Cookie", cookie)
        self.send_header("Location", where)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def answer(self, body, content_type="text/html; charset=utf-8", download=None):
        data = body.encode("utf-8")
        self.send_response(200)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(data)))
        if download:
            self.send_header("Content-Disposition", f'attachment; filename="{download}"')
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *words):
        pass


if __name__ == "__main__":
    if sys.argv[1:] == ["here"]:
        if not STATE.exists():
            STATE.write_text(json.dumps(NEW), "utf-8")
        server = ThreadingHTTPServer(("127.0.0.1", PORT), Handler)
        print(f"the shop is open: http://localhost:{PORT}", flush=True)
        server.serve_forever()
    started = subprocess.Popen(
        [sys.executable, __file__, "here"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
    )
    line = started.stdout.readline().decode().rstrip()
    if not line:
        sys.exit(f"it did not start: is port {PORT} taken?")
    print(line)
