"""The formats of secrets: a table by vendor, and the names that tell of a secret.

`FORMATS` holds the token formats of vendors; the last column names the vendor's site. A format is
found wherever it stands, because its prefix or its form gives it away; a form that begins with any
characters has a row of its own. `telling` judges names, and `looks_random` the values for which a
name alone is not enough.
"""

# ruff: noqa: ISC004 - a row of the table is one or more pieces of a pattern
from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

FORMATS: Final[tuple[tuple[str, str, str], ...]] = (
    # --- code hosts, packages, builds -------------------------------------------------------------
    ("github-token", r"gh[pousr]_[A-Za-z0-9]{36,}|github_pat_\w{22,}", "docs.github.com"),
    ("gitlab-token", r"gl(?:pat|ptt|rt|rtr|dt|ft|soat|agent|cbt|imt|oas|ffct|wt)-[\w.\-]{20,}"
     r"|GR1348941[\w\-]{20,}", "docs.gitlab.com/security/tokens"),
    ("atlassian-token", r"AT(?:ATT|CTT|STT)3[\w=\-]{20,}|ATBB[\w=\-]{24,}|ATOA[\w=\-]{40,}"
     r"|ATTA[0-9a-f]{40,}", "support.atlassian.com"),
    ("npm-token", r"npm_[A-Za-z0-9]{36,}", "docs.npmjs.com"),
    ("pypi-token", r"pypi-AgE[\w\-]{40,}", "pypi.org/help"),
    ("rubygems-key", r"rubygems_[0-9a-f]{48}", "guides.rubygems.org"),
    ("nuget-key", r"oy2[a-z0-9]{43}\b", "learn.microsoft.com/nuget"),
    ("crates-token", r"cio[A-Za-z0-9]{32}\b", "doc.rust-lang.org/cargo"),
    ("clojars-token", r"CLOJARS_[0-9a-f]{40,}", "github.com/clojars"),
    ("packagist-token", r"packagist_[a-z]{3}_[0-9a-f]{40,}", "packagist.com/docs"),
    ("jfrog-token", r"AKCp[A-Za-z0-9]{40,}|cmVmdGtuOj[A-Za-z0-9]{40,}", "jfrog.com/help"),
    ("docker-token", r"dckr_(?:pat|oat)_[\w\-]{27,}", "docs.docker.com"),
    ("circleci-token", r"CCI(?:PAT|PRJ)_[A-Za-z0-9]{20,}_[0-9a-f]{40}", "circleci.com/docs"),
    ("buildkite-token", r"bk(?:ua|ct|at|pt|aj|pat)_[\w\-]{32,}", "buildkite.com/docs"),
    ("sonar-token", r"sq[apu]_[0-9a-f]{40}", "docs.sonarsource.com"),
    ("octopus-key", r"API-[A-Z0-9]{25,}", "octopus.com/docs"),
    ("harness-token", r"(?:pat|sat)\.[\w\-]{22}\.[0-9a-f]{24}\.[A-Za-z0-9]{20}",
     "developer.harness.io"),
    ("sourcegraph-token", r"sg[pds]_(?:[\w]{1,16}_)?[0-9a-f]{40,}", "sourcegraph.com/docs"),
    ("jetbrains-token", r"perm[:\-][A-Za-z0-9+/=]{8,}\.[A-Za-z0-9+/=\-]{4,}\.[A-Za-z0-9]{30,}",
     "jetbrains.com/help"),
    ("prefect-key", r"pn[ub]_[A-Za-z0-9]{36}", "docs.prefect.io"),
    ("snyk-token", r"snyk_(?:uat|sat|pat)\.[\w.\-]{20,}", "docs.snyk.io"),
    ("deno-token", r"dd[pow]_[A-Za-z0-9]{36}", "docs.deno.com"),
    ("expo-token", r"exp[ou]_[\w\-]{30,}", "docs.expo.dev"),
    # --- clouds and hosting -----------------------------------------------------------------------
    ("aws-access-key", r"(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16,}", "docs.aws.amazon.com/IAM"),
    ("aws-token", r"ABSK[A-Za-z0-9+/]{40,}=*|bedrock-api-key-[A-Za-z0-9+/=]{40,}"
     r"|(?:FwoGZXIvYXdz|IQoJb3JpZ2lu)[A-Za-z0-9+/=]{40,}|amzn\.mws\.[0-9a-f\-]{36}"
     r"|amzn1\.oa2-cs\.v1\.[0-9a-f]{40,}", "docs.aws.amazon.com"),
    ("google-key", r"AIza[\w\-]{35}|ya29\.[\w.\-]{20,}|GOCSPX-[\w\-]{20,}|1//0[\w\-]{40,}"
     r"|AQ\.Ab8[\w\-]{40,}", "cloud.google.com/docs/authentication"),
    ("azure-secret", r"[A-Za-z0-9_~.\-]{3}\dQ~[A-Za-z0-9_~.\-]{31,34}", "learn.microsoft.com"),
    ("azure-secret", r"[A-Za-z0-9]{40,60}JQQJ9[9D][A-Za-z0-9]{26,}", "learn.microsoft.com"),
    ("azure-secret", r"[A-Za-z0-9]{40,80}AZDO[A-Za-z0-9]{4}\b", "learn.microsoft.com"),
    ("alibaba-key", r"LTAI[A-Za-z0-9]{12,26}\b", "alibabacloud.com/help"),
    ("tencent-key", r"AKID[A-Za-z0-9]{32}\b", "cloud.tencent.com"),
    ("volcengine-key", r"AKLT[A-Za-z0-9\-]{30,}", "volcengine.com/docs"),
    ("yandex-token", r"y[0-3]_[\w\-]{40,}|AQVN[\w\-]{35,}|t1\.[\w\-]{30,}\.[\w\-]{40,}",
     "yandex.cloud/docs"),
    ("digitalocean-token", r"do[opr]_v1_[0-9a-f]{40,}", "docs.digitalocean.com"),
    ("scaleway-key", r"SCW[A-Z0-9]{17}\b", "scaleway.com/docs"),
    ("heroku-key", r"HRKU-[\w\-]{36,}", "devcenter.heroku.com"),
    ("netlify-token", r"nf[pckoub]_[A-Za-z0-9]{36,}", "docs.netlify.com"),
    ("vercel-token", r"vc[pikar]_[A-Za-z0-9]{24,}|vercel_blob_rw_[A-Za-z0-9]{16,}_[A-Za-z0-9]{20,}",
     "vercel.com/docs"),
    ("render-key", r"rnd_[A-Za-z0-9]{24,}", "render.com/docs"),
    ("fly-token", r"fo1_[\w\-]{43}|fm[12][ar]?_[A-Za-z0-9+/=]{40,}", "fly.io/docs"),
    ("cloudflare-token", r"v1\.0-[0-9a-f]{24}-[0-9a-f]{40,}|cf(?:k|ut|at)_[A-Za-z0-9]{32,}",
     "developers.cloudflare.com"),
    ("pulumi-token", r"pul-[0-9a-f]{40}", "pulumi.com/docs"),
    ("terraform-token", r"[A-Za-z0-9]{14}\.atlasv1\.[\w\-]{40,}", "developer.hashicorp.com"),
    ("vault-token", r"hv[sbr]\.[\w\-]{20,}|[sbr]\.[A-Za-z0-9]{24}\b", "developer.hashicorp.com"),
    ("tailscale-key", r"tskey-(?:[a-z]+-)?[A-Za-z0-9]{6,}(?:CNTRL)?-[A-Za-z0-9]{16,}",
     "tailscale.com/kb"),
    ("scalingo-token", r"tk-us-[\w\-]{48}", "developers.scalingo.com"),
    ("openshift-token", r"sha256~[\w\-]{43}", "docs.openshift.com"),
    # --- keepers of secrets and identity ----------------------------------------------------------
    ("doppler-token", r"dp\.(?:ct|pt|sa|scim|audit|rt|st(?:\.[\w\-]{1,40})?)\.[A-Za-z0-9]{40,44}",
     "docs.doppler.com"),
    ("onepassword-token", r"ops_eyJ[\w\-+/=]{40,}|A3-[A-Z0-9]{6}-(?:[A-Z0-9]{11}"
     r"|[A-Z0-9]{6}-[A-Z0-9]{5})-[A-Z0-9]{5}-[A-Z0-9]{5}-[A-Z0-9]{5}", "developer.1password.com"),
    ("bitwarden-token", r"0\.[0-9a-f\-]{36}\.[A-Za-z0-9]{30}:[A-Za-z0-9+/=]{24}",
     "bitwarden.com/help"),
    ("infisical-token", r"st\.[0-9a-f\-]{24,36}\.[0-9a-f]{32,}\.[0-9a-f]{32,}",
     "infisical.com/docs"),
    ("okta-token", r"00[A-Za-z][\w\-]{39}\b", "developer.okta.com"),
    ("launchdarkly-key", r"(?:api|sdk|mob|rel)-[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[0-9a-f]{4}"
     r"-[0-9a-f]{12}", "launchdarkly.com/docs"),
    ("age-key", r"AGE-SECRET-KEY-1[0-9A-Z]{40,}", "age-encryption.org"),
    ("nats-seed", r"S[UAONCX][A-Z2-7]{40,}\b", "docs.nats.io"),
    ("wallet-key", r"[xyzt]prv[1-9A-HJ-NP-Za-km-z]{40,}", "BIP 32"),
    ("secret-token-uri", r"secret-token:[\w~.%\-]{12,}", "RFC 8959"),
    ("password-hash", r"\$(?:2[abxy]\$\d\d\$[./A-Za-z0-9]{40,}|(?:1|5|6|y|7|apr1)\$[^\s:\"'\\]{20,}"
     r"|argon2(?:id?|d)\$[^\s:\"'\\]{30,})", "crypt(5)"),
    # --- watching ---------------------------------------------------------------------------------
    ("new-relic-key", r"NR(?:AK|AA|II|IQ|RA|JS|BR|AL)-[\w\-]{19,}", "docs.newrelic.com"),
    ("new-relic-key", r"[0-9a-z]{36}NRAL\b", "docs.newrelic.com"),
    ("sentry-token", r"sntry[sui]_[\w\-+/=]{30,}", "docs.sentry.io"),
    ("grafana-token", r"glsa_[A-Za-z0-9]{32}_[0-9a-f]{8}|glc_[A-Za-z0-9+/=]{32,}"
     r"|eyJrIjoi[A-Za-z0-9+/=\-_]{40,}", "grafana.com/docs"),
    ("dynatrace-token", r"dt0[a-z]\d\d\.[A-Z0-9]{8,24}(?:\.[A-Z0-9]{40,})?", "docs.dynatrace.com"),
    ("honeycomb-key", r"hc[abx]?[a-z]?[il]k_[A-Za-z0-9]{26,}|hcaik_\w{26,}", "docs.honeycomb.io"),
    ("posthog-key", r"ph[cxs]_[A-Za-z0-9]{32,}", "posthog.com/docs"),
    ("segment-token", r"sgp_[A-Za-z0-9]{40,}", "segment.com/docs"),
    ("datadog-key", r"dd(?:api|app|pat|sat)_[A-Za-z0-9]{32,}", "docs.datadoghq.com"),
    # --- messages ---------------------------------------------------------------------------------
    ("slack-token", r"xox[abceoprs](?:\.xox[a-z])?-[A-Za-z0-9\-]{10,}|x(?:app"
     r"|wfp)-\d-[A-Za-z0-9\-]{10,}",
     "api.slack.com/authentication"),
    ("webhook", r"hooks\.slack(?:-gov)?\.com/(?:services|workflows|triggers)/[A-Za-z0-9+/]{20,}"
     r"|discord(?:app)?\.com/api/(?:v\d+/)?webhooks/\d{10,}/[\w\-]{30,}"
     r"|webhook\.office\.com/webhookb2/[\w@/\-]{40,}"
     r"|outlook\.office(?:365)?\.com/webhook/[\w@/\-]{40,}"
     r"|hooks\.zapier\.com/hooks/catch/[\w/]{8,}|hook\.(?:[a-z0-9]+\.)?make\.com/[a-z0-9]{24,}"
     r"|maker\.ifttt\.com/(?:trigger/[\w\-]+/(?:json/)?with|use)/(?:key/)?[\w\-]{16,}"
     r"|open\.(?:feishu\.cn|larksuite\.com)/open-apis/bot/v2/hook/[\w\-]{20,}"
     r"|events\.pagerduty\.com/integration/[0-9a-f]{32}|private-[0-9a-f]{32}/basic\.ics",
     "the vendors' pages on incoming webhooks"),
    ("discord-token", r"[MNO][\w\-]{23,27}\.[\w\-]{6}\.[\w\-]{27,40}", "discord.com/developers"),
    ("discord-token", r"mfa\.[\w\-]{40,}", "discord.com/developers"),
    ("telegram-token", r"(?:bot)?\d{8,10}:A[A-Za-z0-9_\-]{34}\b", "core.telegram.org/bots"),
    ("twilio-key", r"SK[0-9a-f]{32}\b", "twilio.com/docs"),
    ("sendgrid-key", r"SG\.[\w\-]{16,}\.[\w\-]{16,}", "docs.sendgrid.com"),
    ("mailgun-key", r"(?:pub)?key-[0-9a-f]{32}\b", "documentation.mailgun.com"),
    ("mailgun-key", r"[0-9a-f]{32}-[0-9a-f]{8}-[0-9a-f]{8}\b", "documentation.mailgun.com"),
    ("mailchimp-key", r"[0-9a-f]{32}-us\d{1,2}\b", "mailchimp.com/developer"),
    ("mailchimp-key", r"md-[\w\-]{22}\b", "mailchimp.com/developer"),
    ("brevo-key", r"x(?:keysib|smtpsib)-[0-9a-f]{40,}-[A-Za-z0-9]{16}", "developers.brevo.com"),
    ("resend-key", r"re_[A-Za-z0-9]{8}_[A-Za-z0-9]{20,}", "resend.com/docs"),
    ("mailersend-key", r"mlsn\.[0-9a-f]{40,}", "developers.mailersend.com"),
    ("onesignal-key", r"os_v2_(?:app|org)_[a-z0-9]{40,}", "documentation.onesignal.com"),
    ("telnyx-key", r"KEY[0-9A-F]{32}_\w{20,}", "developers.telnyx.com"),
    ("pubnub-key", r"(?:sec|sub|pub)-c-[A-Za-z0-9\-]{36,}", "pubnub.com/docs"),
    ("intercom-token", r"dG9rO[A-Za-z0-9+/]{40,}=*", "developers.intercom.com"),
    # --- money and trade --------------------------------------------------------------------------
    ("stripe-key", r"[sr]k_(?:live|test|prod|sbox)_[A-Za-z0-9]{16,}|whsec_[A-Za-z0-9+/=]{24,}"
     r"|(?:pi|seti|cs)_[A-Za-z0-9_]{10,}_secret_[A-Za-z0-9]{16,}", "docs.stripe.com/keys"),
    ("square-token", r"sq0[a-z]{3}-[\w\-]{22,}|EAAA[\w\-]{40,}", "developer.squareup.com"),
    ("paypal-token", r"access_token\$(?:production|sandbox)\$[0-9a-z]{16}\$[0-9a-f]{32}"
     r"|A21AA[\w\-]{40,}", "developer.paypal.com"),
    ("shopify-token", r"shp(?:at|ca|pa|ss|ua|tka|it)_[0-9A-Fa-f]{32}", "shopify.dev"),
    ("plaid-token", r"(?:access|public|link)-(?:sandbox|development|production)-[0-9a-f\-]{36}",
     "plaid.com/docs"),
    ("razorpay-key", r"rzp_(?:live|test)_[A-Za-z0-9]{14,}", "razorpay.com/docs"),
    ("mollie-key", r"(?:live|test)_[A-Za-z0-9]{30,}", "docs.mollie.com, lob.com/docs"),
    ("gocardless-token", r"(?:live|sandbox)_[\w\-]{40}\b", "developer.gocardless.com"),
    ("adyen-key", r"AQE[\w+/]{20,}[\w+/=\-]{40,}", "docs.adyen.com"),
    ("flutterwave-key", r"FLW(?:SEC|PUB)K(?:_TEST|_LIVE)?-[0-9a-zA-Z]{12,}(?:-X)?",
     "developer.flutterwave.com"),
    ("midtrans-key", r"(?:SB-)?Mid-server-[\w\-]{20,}", "docs.midtrans.com"),
    ("paddle-key", r"pdl_(?:live|sdbx)_apikey_\w{40,}|pdl_ntfset_\w{30,}", "developer.paddle.com"),
    ("duffel-token", r"duffel_(?:live|test)_[\w\-]{43}", "duffel.com/docs"),
    ("easypost-key", r"EZ[AT]K[A-Za-z0-9]{40,}", "docs.easypost.com"),
    ("shippo-token", r"shippo_(?:live|test)_[0-9a-f]{40}", "docs.goshippo.com"),
    ("woocommerce-key", r"ck_[0-9a-f]{40}", "woocommerce.github.io"),
    ("ebay-token", r"v\^1\.1#[\w^#+/=]{40,}", "developer.ebay.com"),
    # --- work -------------------------------------------------------------------------------------
    ("notion-token", r"secret_[A-Za-z0-9]{43}|ntn_[A-Za-z0-9]{40,}", "developers.notion.com"),
    ("linear-key", r"lin_(?:api|oauth|wh)_[A-Za-z0-9]{32,}", "linear.app/developers"),
    ("airtable-token", r"pat[A-Za-z0-9]{14}\.[0-9a-f]{40,}", "airtable.com/developers"),
    ("asana-token", r"[0-2]/\d{10,}(?:/\d{10,})?:[0-9a-f]{32}", "developers.asana.com"),
    ("clickup-token", r"pk_\d{6,9}_[A-Z0-9]{32}", "developer.clickup.com"),
    ("figma-token", r"fig[a-z]{1,3}_[\w\-]{40,}|figd_[\w\-]{30,}", "figma.com/developers"),
    ("hubspot-token", r"pat-(?:na|eu|ap)\d-[0-9a-f]{8}-[0-9a-f\-]{27}", "developers.hubspot.com"),
    ("postman-key", r"PMAK-[0-9a-f]{24}-[0-9a-f]{34}|PMAT-[0-9A-Z]{26}", "learning.postman.com"),
    ("contentful-token", r"CFPAT-[\w\-]{43}", "contentful.com/developers"),
    ("dropbox-token", r"sl\.(?:u\.)?[A-Za-z0-9_\-]{40,}", "dropbox.com/developers"),
    ("mapbox-token", r"[pst]k\.eyJ[\w\-]{20,}\.[\w\-]{20,}", "docs.mapbox.com"),
    ("typeform-token", r"tfp_[\w\-]{40,}", "typeform.com/developers"),
    ("salesforce-token", r"00D[A-Za-z0-9]{12,15}![A-Za-z0-9._]{40,}|5Aep8[\w.]{40,}",
     "help.salesforce.com"),
    ("zoho-token", r"1000\.[0-9a-f]{32}\.[0-9a-f]{32}", "zoho.com/accounts/protocol"),
    ("readme-key", r"rdme_[a-z0-9]{40,}", "docs.readme.com"),
    ("adobe-secret", r"p8e-[A-Za-z0-9_\-]{32}", "developer.adobe.com"),
    ("facebook-token", r"EAA[A-Za-z0-9]{40,}|IG(?:QV|AA)[A-Za-z0-9_\-]{40,}"
     r"|\d{13,17}\|[\w\-]{27}\b", "developers.facebook.com"),
    ("twitter-token", r"AAAAAAAAAAAAAAAAAAAA[A-Za-z0-9%]{40,}", "developer.x.com"),
    ("twitch-token", r"oauth:[a-z0-9]{30}\b", "dev.twitch.tv"),
    ("pinterest-token", r"pin[ac]_[A-Z0-9]{40,}", "developers.pinterest.com"),
    ("tiktok-token", r"(?:act|rft|clt)\.[A-Za-z0-9]{30,}(?:!\d+\.\w+)?", "developers.tiktok.com"),
    ("vk-token", r"vk1\.a\.[\w\-]{40,}", "dev.vk.com"),
    ("lichess-token", r"lip_[A-Za-z0-9]{20,}", "lichess.org/api"),
    ("maxmind-key", r"[A-Za-z0-9]{6}_[A-Za-z0-9]{29}_mmk", "dev.maxmind.com"),
    ("frameio-token", r"fio-u-[\w=\-]{40,}", "developer.frame.io"),
    # --- databases --------------------------------------------------------------------------------
    ("databricks-token", r"d(?:api|ose|kea|ocs|sar)[0-9a-f]{32}(?:-\d)?", "docs.databricks.com"),
    ("planetscale-token", r"pscale_[a-z]{2,6}_[\w.=\-]{32,}", "planetscale.com/docs"),
    ("supabase-key", r"sbp_(?:v0_|oauth_)?[0-9a-f]{40}|sb_secret_[\w\-]{20,}", "supabase.com/docs"),
    ("neon-key", r"napi_[a-z0-9]{40,}|npg_[A-Za-z0-9]{12,}", "neon.com/docs"),
    ("cockroach-key", r"CCDB1_[A-Za-z0-9]{22}_[A-Za-z0-9]{40}", "cockroachlabs.com/docs"),
    ("aiven-password", r"AVNS_[\w\-]{15,}", "aiven.io/docs"),
    ("mongodb-secret", r"mdb_sa_sk_[\w\-]{30,}", "mongodb.com/docs/atlas"),
    ("pinecone-key", r"pcsk_\w{40,}", "docs.pinecone.io"),
    ("elastic-key", r"es(?:su|cru|ru)_[A-Za-z0-9+/=]{40,}", "elastic.co/docs"),
    ("xata-key", r"xau_[A-Za-z0-9]{30,}", "xata.io/docs"),
    ("algolia-secured-key", r"alg_[A-Za-z0-9]{30,}", "algolia.com/doc"),
    # --- models -----------------------------------------------------------------------------------
    ("anthropic-key", r"sk-ant-[\w\-]{24,}", "docs.anthropic.com"),
    ("openai-key", r"sk-(?:proj|svcacct|admin|None|or-v1|lf|helicone)-[\w\-]{20,}"
     r"|sk-[A-Za-z0-9]{32,}"
     r"|sk-[\w\-]{20,}T3BlbkFJ[\w\-]{16,}|sess-[A-Za-z0-9]{40}\b", "platform.openai.com/docs"),
    ("hugging-face-token", r"hf_[A-Za-z0-9]{30,}|api_org_[A-Za-z0-9]{30,}", "huggingface.co/docs"),
    ("replicate-token", r"r8_[A-Za-z0-9]{37}", "replicate.com/docs"),
    ("groq-key", r"gsk_[A-Za-z0-9]{40,}", "console.groq.com/docs"),
    ("xai-key", r"xai-[A-Za-z0-9]{40,}", "docs.x.ai"),
    ("perplexity-key", r"pplx-[A-Za-z0-9]{40,}", "docs.perplexity.ai"),
    ("together-key", r"tgp_v1_[\w\-]{40,}", "docs.together.ai"),
    ("fireworks-key", r"fw_[A-Za-z0-9]{22,}", "docs.fireworks.ai"),
    ("nvidia-key", r"nvapi-[\w\-]{40,}", "docs.api.nvidia.com"),
    ("langsmith-key", r"lsv2_(?:pt|sk)_[0-9a-f]{32}_[0-9a-f]{10}|ls__[0-9a-f]{32}",
     "docs.smith.langchain.com"),
    ("tavily-key", r"tvly-[A-Za-z0-9\-]{28,}", "docs.tavily.com"),
    ("firecrawl-key", r"fc-[0-9a-f]{32}\b", "docs.firecrawl.dev"),
    ("e2b-key", r"e2b_[0-9a-f]{40}", "e2b.dev/docs"),
    ("modal-token", r"a[ks]-[A-Za-z0-9]{22}\b", "modal.com/docs"),
    ("jina-key", r"jina_[A-Za-z0-9_\-]{40,}", "jina.ai"),
    ("apify-token", r"apify_api_[A-Za-z0-9]{32,}", "docs.apify.com"),
    ("cerebras-key", r"csk-[a-z0-9]{40,}", "inference-docs.cerebras.ai"),
    ("voyage-key", r"pa-[\w\-]{40,}", "docs.voyageai.com"),
    ("llamaindex-key", r"llx-[A-Za-z0-9]{40,}", "docs.cloud.llamaindex.ai"),
    ("wandb-key", r"wandb_v1_\w{40,}|local-[0-9a-f]{40}\b", "docs.wandb.ai"),
    ("inngest-key", r"signkey-[a-z]{3,7}-[0-9a-f]{32,}", "inngest.com/docs"),
    ("ibm-key", r"ApiKey-[0-9a-f\-]{36}", "cloud.ibm.com/docs"),
)  # fmt: skip

# --- names that tell of a secret ------------------------------------------------------------------


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_END: Final = r"s?(?:\b|[_\d]|(?-i:[A-Z]))"
SURE_WORDS: Final = (
    r"(?:passw(?:or)?d|passwort|kennwort|contrase(?:n|ñ)a|senha|passphrase|passcode|pwd|secret"
    r"|cred(?:ential)?|jwt|cookie|mnemonic|(?:seed|recovery)[ _.\-]?(?:phrase|code)|authorization"
    r"|(?:api|access|private|account|encryption|signing|secret|master|auth|admin|consumer|app"
    r"|license|subscription|shared)[ _.\-]?key"
    rf"|(?:access|auth|refresh|bearer|session|csrf|api|bot|personal)[ _.\-]?token){_END}"
)
UNSURE_WORDS: Final = (
    r"(?:token|key|session|sess(?:ion)?id|webhook|(?:\b|_)(?:auth|pass|salt|sid|dsn|pat)"
    rf"|(?-i:[a-z\d](?:Auth|Pass|Salt|Sid|Dsn|Pat))){_END}"
)
"""RE2 patterns of the words that may tell of a secret; `telling` judges the whole name."""

_SURE: Final = re.compile(
    r".*(?:passw(?:or)?d|passwort|kennwort|contrase[nñ]a|senha|passphrase|passcode|pwd|secret"
    r"|apikey"
    r"|authtoken|accesstoken|privatekey|secretkey|accesskey)|credentials?|creds?|mnemonic|jwt"
    r"|cookie|authorization"
)
_SURE_OF: Final = {
    "key": _words(
        """api access private account encryption signing secret master auth admin consumer app
        license subscription shared"""
    ),
    "token": _words("access auth refresh bearer session csrf api bot personal"),
    "phrase": _words("seed recovery"),
    "code": _words("recovery"),
}
"""With one of these words before it, such a word is a secret whatever its value looks like."""
_UNSURE: Final = re.compile(
    r"key|.*token|.*sess(?:ion)?id|session|sid|auth|pass|webhook|salt|dsn|pat"
)
_NEVER_AFTER: Final = _words(
    """next prev previous page pagination continuation cursor sync cancel cancellation max min
    total prompt completion input output per eos bos pad stop start end delta resume primary
    foreign public publishable cache idempotency partition sort object routing row map
    translation message lookup group dedup deduplication business natural composite index
    range issue project parent unique order join column field shard item record entity
    document feature event"""
)
"""Words before a telling word that make it harmless: `next_page_token`, `idempotency_key`."""
_NEVER_BEFORE: Final = _words(
    """count counts type types limit limits length size expires expired expiry expiration ttl
    lifetime age url uri endpoint path file filename dir name names field header param
    policy status state version format usage used required enabled valid hint label
    description budget address rotation at in ms seconds error provider source store manager
    class method mode algorithm alg prefix suffix pattern schema index arn ref fingerprint
    issuer audience scope scopes owner hash digest"""
)
"""Words behind a telling word that make it harmless: `token_count`, `secret_name`."""
_HUMP: Final = re.compile(
    r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|[^A-Za-z0-9ñ]+|(?<=[a-z])(?=\d)"
)


@lru_cache(maxsize=4096)
def telling(name: str) -> int:
    """Return how surely a name tells of a secret: 0 not, 1 if the value looks random, 2 surely."""
    words = [word for word in _HUMP.sub(" ", name).lower().split() if not word.isdigit()]
    best = 0
    for i, word in enumerate(words):
        before, behind = words[i - 1] if i else "", words[i + 1 :]
        if before in _NEVER_AFTER or len(behind) > 3 or not _NEVER_BEFORE.isdisjoint(behind):
            continue
        if "id" in behind and word not in ("session", "secret"):
            continue
        singular = word.removesuffix("s") if len(word) > 4 else word
        if _SURE.fullmatch(singular) or before in _SURE_OF.get(singular, ()):
            best = max(best, 1 if behind or singular != word else 2)
        elif _UNSURE.fullmatch(singular):
            best = max(best, 1)
    return best


_HEX: Final = re.compile(r"[0-9a-f]{32,}|[0-9A-F]{32,}")
_RUNS: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+|\d+")
_ORDERLY: Final = re.compile(
    r"\d{4}-\d\d-\d\d.*|[vV]?\d+(?:\.\d+)+.*|(?:https?:/)?[./~].*|[\w.\-]+\.(?:[a-z]{2,4}|json"
    r"|yaml|toml)"
)


def looks_random(text: str) -> bool:
    """Return whether a text looks like the output of a generator, and not like words or a date.

    Runs of letters of one case and of digits are short in random text.
    """
    plain = text.strip("=.,;:!?*_`")
    if len(plain) < 8 or " " in plain or _ORDERLY.fullmatch(plain):
        return False
    if _HEX.fullmatch(plain):
        return True
    runs = _RUNS.findall(plain)
    digits = sum(run.isdigit() for run in runs)
    if not digits or digits == len(runs):
        return len(plain) >= 20 and len(runs) * 2.4 > len(plain) and digits == 0
    mean = sum(map(len, runs)) / len(runs)
    return mean <= 2.7 or (mean <= 4 and len(plain) >= 16 and len(runs) > 4)


_IDENTITY: Final = re.compile(
    r"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}|[0-9a-f]{40}|[0-9a-f]{64}"
    r"|[0-7][0-9A-HJKMNP-TV-Z]{25}"
)
"""UUID, SHA-1, SHA-256, ULID: under the bare name `key` they identify something."""


def is_identity(text: str) -> bool:
    """Return whether a text has the form of an id or a hash."""
    return _IDENTITY.fullmatch(text) is not None


_TOKEN_NAME: Final = re.compile(r"(?i:.*(?:token|sess(?:ion)?[_\-. ]?id))", re.DOTALL)
_TOKEN: Final = re.compile(r"(?=\D*\d)(?=\d*[A-Za-z])[A-Za-z0-9]{12,}")


def is_token(name: str, text: str) -> bool:
    """Return whether a text under an unsure name is a secret.

    It looks random, or it mixes letters and digits and the name ends in `token` or `session_id`.
    """
    if looks_random(text):
        return not (name.lower() == "key" and is_identity(text))
    return bool(_TOKEN_NAME.fullmatch(name) and _TOKEN.fullmatch(text) and not is_identity(text))
