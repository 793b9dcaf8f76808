"""Generates samples: secrets of many vendors in many surroundings, and ids that are no secrets.

A sample is made from a vendor's format and a surrounding, with a seed, so that a failure can be
repeated. `{a36}` stands for 36 random letters and digits; see `LETTERS` for the other kinds.
"""

import base64
import random
import re
import uuid

UPPER, LOWER, DIGITS, HEX = (
    "ABCDEFGHIJKLMNOPQRSTUVWXYZ", "abcdefghijklmnopqrstuvwxyz", "0123456789", "0123456789abcdef"
)  # fmt: skip
LETTERS = {
    "a": UPPER + LOWER + DIGITS,
    "w": UPPER + LOWER + DIGITS + "_-",
    "b": UPPER + LOWER + DIGITS + "+/",
    "h": HEX,
    "H": HEX.upper(),
    "U": UPPER + DIGITS,
    "l": LOWER + DIGITS,
    "d": DIGITS,
    "z": LOWER,
    "t": UPPER + "234567",
    "x": "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz",
}

PREFIXED = """
github ghp_{a36}
github gho_{a36}
github ghs_{a36}
github github_pat_{a22}_{a59}
gitlab glpat-{w20}
gitlab gldt-{w20}
gitlab glrt-{w20}
gitlab glptt-{h40}
slack xoxb-{d12}-{d12}-{a24}
slack xoxp-{d12}-{d12}-{d12}-{h32}
slack xapp-1-A{U10}-{d13}-{h64}
slack https://hooks.slack.com/services/T{U8}/B{U10}/{a24}
stripe sk_live_{a24}
stripe rk_test_{a24}
stripe whsec_{a32}
openai sk-proj-{w74}T3BlbkFJ{w74}
openai sk-{a20}T3BlbkFJ{a20}
anthropic sk-ant-api03-{w93}AA
aws AKIA{t16}
aws ASIA{t16}
gcp AIza{w35}
gcp ya29.{w120}
gcp GOCSPX-{w28}
azure {a3}8Q~{a34}
twilio SK{h32}
sendgrid SG.{w22}.{w43}
mailgun key-{h32}
mailchimp {h32}-us12
brevo xkeysib-{h64}-{a16}
resend re_{a8}_{a24}
npm npm_{a36}
pypi pypi-AgEIcHlwaS5vcmc{w120}
rubygems rubygems_{h48}
docker dckr_pat_{w27}
vault hvs.{w90}
terraform {a14}.atlasv1.{w67}
digitalocean dop_v1_{h64}
digitalocean doo_v1_{h64}
newrelic NRAK-{U27}
sentry sntrys_eyJ{b120}_{b43}
sentry sntryu_{h64}
grafana glsa_{a32}_{h8}
grafana glc_eyJ{a100}
shopify shpat_{h32}
shopify shpss_{h32}
square sq0atp-{w22}
square EAAA{w60}
paypal access_token$production${l16}${h32}
discord M{a25}.{w6}.{w38}
discord https://discord.com/api/webhooks/{d18}/{w68}
telegram {d10}:AA{w33}
notion secret_{a43}
notion ntn_{d11}{a35}
linear lin_api_{a40}
airtable pat{a14}.{h64}
figma figd_{w40}
huggingface hf_{a34}
replicate r8_{a37}
databricks dapi{h32}
planetscale pscale_tkn_{w43}
planetscale pscale_pw_{w43}
supabase sbp_{h40}
supabase sb_secret_{w31}
postman PMAK-{h24}-{h34}
atlassian ATATT3xFfGF0{w180}
bitbucket ATBB{a32}
heroku HRKU-AA{w58}
netlify nfp_{a36}
vercel vcp_{a56}
pulumi pul-{h40}
doppler dp.pt.{a43}
doppler dp.st.prod.{a43}
onepassword ops_eyJ{a300}
onepassword A3-{U6}-{U11}-{U5}-{U5}-{U5}
okta 00u{a39}
launchdarkly sdk-{u}
launchdarkly api-{u}
contentful CFPAT-{w43}
mapbox sk.eyJ{a80}.{w22}
dropbox sl.{w136}
asana 1/{d16}:{h32}
hubspot pat-na1-{u}
intercom dG9rO{b54}=
tailscale tskey-auth-{a16}CNTRL-{a32}
pinecone pcsk_{a6}_{a63}
groq gsk_{a52}
xai xai-{a80}
perplexity pplx-{a48}
nvidia nvapi-{w64}
langsmith lsv2_pt_{h32}_{h10}
tavily tvly-dev-{a32}
posthog phx_{a43}
buildkite bkua_{h40}
circleci CCIPAT_{a22}_{h40}
sonar squ_{h40}
dynatrace dt0c01.{U24}.{U64}
plaid access-production-{u}
razorpay rzp_live_{a14}
mollie live_{a30}
gocardless live_{w40}
flutterwave FLWSECK_TEST-{h32}-X
shippo shippo_live_{h40}
easypost EZAK{a54}
duffel duffel_test_{w43}
clickup pk_{d8}_{U32}
typeform tfp_{w44}
zoho 1000.{h32}.{h32}
salesforce 00D{a12}!AQ{a94}
yandex y0_{w58}
alibaba LTAI{a20}
tencent AKID{a32}
clojars CLOJARS_{h60}
jfrog AKCp{a69}
nuget oy2{l43}
crates cio{a32}
fly fo1_{w43}
cloudflare v1.0-{h24}-{h146}
render rnd_{a32}
neon napi_{l64}
cockroach CCDB1_{a22}_{a40}
aiven AVNS_{w19}
prefect pnu_{a36}
facebook EAAB{a170}
twitch oauth:{l30}
lichess lip_{a20}
readme rdme_{l70}
sourcegraph sgp_{h40}
woocommerce ck_{h40}
age AGE-SECRET-KEY-1{U58}
jwt eyJhbGciOiJIUzI1NiJ9.eyJ{w60}.{w43}
wallet xprv{x107}
bcrypt $2b$12${a53}
database postgres://app:{a20}@db.example.com:5432/app
database mysql://root:{a16}@10.0.0.3/shop
mongodb mongodb+srv://svc:{a18}@cluster0.ab1cd.mongodb.net/?retryWrites=true
redis redis://:{a24}@cache.internal:6379/0
rabbitmq amqps://u:{a20}@mq.example.com/v
sentry https://{h32}@o{d6}.ingest.sentry.io/{d7}
azure DefaultEndpointsProtocol=https;AccountName=shop;AccountKey={b86}==;EndpointSuffix=x.net
azure Endpoint=sb://shop.servicebus.windows.net/;SharedAccessKeyName=Root;SharedAccessKey={b43}=
azure https://shop.blob.core.windows.net/c/f?sv=2022-11-02&se=2030-01-01&sr=b&sp=r&sig={a43}%3D
aws https://b.s3.amazonaws.com/k?X-Amz-Expires=900&X-Amz-Signature={h64}
mssql Server=tcp:db,1433;Initial Catalog=shop;User ID=app;Password={a16};Encrypt=True
teams https://shop.webhook.office.com/webhookb2/{u}@{u}/IncomingWebhook/{h32}/{u}
zapier https://hooks.zapier.com/hooks/catch/{d7}/{l7}/
telegram https://api.telegram.org/bot{d10}:AA{w33}/sendMessage
github https://x-access-token:ghs_{a36}@github.com/a/b.git
"""
"""Formats that a prefix or their form gives away, whatever stands around them."""

PLAIN = """
algolia {h32}
amplitude {h32}
auth0 {w64}
azure {h32}
bitly {h40}
bugsnag {h32}
cloudflare {w40}
cohere {a40}
codecov {u}
coinbase {a64}
confluent {b64}
datadog {h32}
datadog {h40}
deepgram {h40}
elevenlabs {h32}
etsy {l24}
fastly {w32}
finnhub {l20}
freshbooks {h64}
github {h40}
heroku {u}
hunter {h40}
infura {h32}
jira {a24}
kraken {b86}==
kucoin {h24}
linkedin {a16}
mailjet {h32}
messagebird {a25}
mistral {a32}
mixpanel {h32}
okta {w40}
opsgenie {u}
paddle {h50}
pagerduty {w20}
pingdom {a64}
postmark {u}
rapidapi {a50}
rollbar {h32}
snowflake {a32}
snyk {u}
splunk {u}
spotify {h32}
squarespace {a36}
sumologic {a64}
trello {h32}
twilio {h32}
twitter {a45}
vonage {a16}
weather {h32}
yelp {w128}
zendesk {a40}
"""
"""Formats without a prefix: only what stands around them tells that they are secrets."""

TELLING = """
env {V}_API_KEY={s}
env export {V}_TOKEN="{s}"
env {V}_SECRET='{s}'
env {V}_ACCESS_TOKEN={s}
env PGPASSWORD={s} psql -h db -U app
json {"{v}_api_key": "{s}"}
json {"token": "{s}", "ok": true}
json {\\"jwt\\": \\"{s}\\"}
json {"session_id":"{s}"}
json {"{v}": {"clientSecret": "{s}"}}
json {"name": "{V}_KEY", "value": "{s}"}
yaml {v}:\\n  api_key: {s}
yaml   auth_token: "{s}"
yaml - name: {V}_TOKEN\\n  value: {s}
toml api_token = "{s}"
ini secret_key = {s}
properties {v}.api.key={s}
header X-Api-Key: {s}
header Authorization: Bearer {s}
header Authorization: token {s}
header X-{v}-Token: {s}
header curl -H "Authorization: Bearer {s}" https://api.example.com/v1
header Cookie: theme=dark; session={s}
header Set-Cookie: sid={s}; Path=/; HttpOnly
url https://api.example.com/v1/items?api_key={s}&page=2
url https://api.example.com/v1/items?page=2&access_token={s}
url https://api.example.com/v1/items?token={s}
url https://{s}@api.example.com/v1
cli {v} login --token {s}
cli {v} --api-key={s} deploy
cli {v} --password "{s}"
log 2026-03-01T10:00:00Z INFO {v}: using token={s} for tenant 4
log [debug] request headers: {'x-api-key': '{s}'}
code api_key = "{s}"
code const {v}Token = '{s}';
code client = {v}.Client(api_key="{s}")
code {v}.setApiKey("{s}")
code private static final String SECRET_KEY = "{s}";
code "ApiKey" => "{s}",
code os.environ["{V}_TOKEN"] = "{s}"
xml <apiKey>{s}</apiKey>
xml <add key="{v}ApiKey" value="{s}" />
prose API Key: {s}
prose Here is my token: {s}
prose The password is {s}
prose my {v} api key is {s}, please keep it safe
"""
"""Surroundings whose key tells of a secret; `{s}` is the secret and `{v}` the vendor."""

BARE = """
alone {s}
prose I ran it with {s} and got an error.
prose see ({s}).
json ["{s}", 1]
json {"value": "{s}"}
yaml value: {s}
code call("{s}")
log 10:00:00 {v} said 401 for {s}
list - {s}
env {V}={s}
"""
"""Surroundings that tell nothing."""

IDS = """
{u}
{h40}
{h64}
{h32}
{h24}
{h7}
sha256:{h64}
sha512-{b86}==
{b22}==
{b27}=
"{h32}"
W/"{h32}"
01{t24}
req_{h24}
call_{h24}
run_{h24}
evt_{h14}{h8}
appr_{h24}
cs_{h40}
cus_{a14}
evt_1{a23}
msg_01{a22}
chatcmpl-{a29}
ORD-{d8}
INV-2026-{d5}
{d16}
{d19}
DE{d20}
arn:aws:iam::{d12}:role/{z8}
projects/{z8}/locations/eu/jobs/{d12}
i-0{h16}
vpc-{h17}
https://example.com/item/{u}
https://example.com/commit/{h40}
urn:uuid:{u}
00-{h32}-{h16}-01
{d3}-{d7}-{d7}
{z8}-{z6}-{h10}-{l5}
C{U10}
{a11}
"""
IDS_IN = """
{s}
id: {s}
{"id": "{s}"}
{"request_id": "{s}", "etag": "{s}"}
{"idempotency_key": "{s}", "next_page_token": "{s}"}
{"cache_key": "{s}", "primary_key": "{s}", "public_key": "{s}"}
Idempotency-Key: {s}
commit {s}
Order {s} was shipped.
ETag: {s}
trace_id={s} span=3
{"sha": "{s}", "digest": "{s}", "checksum": "{s}"}
"""


def lines(table):
    return [line.replace("\\n", "\n").replace('\\\\"', '\\"') for line in table.strip().split("\n")]


def made(template, rng):
    """Return a template with its random parts filled in."""

    def part(match):
        kind, size = match.groups()
        if kind == "u":
            return str(uuid.UUID(int=rng.getrandbits(128), version=4))
        return "".join(rng.choices(LETTERS[kind], k=int(size)))

    return re.sub(r"\{([awbhHUldztxu])(\d*)\}", part, template)


def core(secret):
    """Return the part of a sample that must not be left: its longest random run."""
    inside = re.search(r"(?:AccountKey|SharedAccessKey|sig|Signature|Password)=([^;&]+)", secret)
    userinfo = re.search(r"://(?:[^:/@\s]*:)?([^@/\s]+)@", secret)
    return (inside or userinfo or re.match("(.*)", secret)).group(1)


def planted(formats, surroundings, seed=7):
    """Yield vendor, kind of surrounding, secret and text of each format in each surrounding."""
    rng = random.Random(seed)
    for line in lines(formats):
        vendor, template = line.split(" ", 1)
        for around in lines(surroundings):
            kind, form = around.split(" ", 1)
            secret = made(template, rng)
            text = form.replace("{s}", secret).replace("{V}", vendor.upper())
            yield vendor, kind, core(secret), text.replace("{v}", vendor)


def ids(rounds, seed=11):
    """Yield texts with ids, hashes and images, none of which is a secret."""
    rng = random.Random(seed)
    for _ in range(rounds):
        for template in lines(IDS):
            for around in lines(IDS_IN):
                yield around.replace("{s}", made(template, rng))
    for size in (60, 600, 6000):
        for _ in range(rounds * 4):
            zeros = bytes(rng.randrange(200))
            blob = base64.b64encode(b"\x89PNG\r\n" + zeros + rng.randbytes(size) + zeros).decode()
            yield blob
            yield f"data:image/png;base64,{blob}"
            yield f'{{"image": "{blob}", "mime": "image/png"}}'
            yield base64.urlsafe_b64encode(rng.randbytes(size)).decode()
