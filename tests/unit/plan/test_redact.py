"""What is masked in logs, command lines and source, and what a training prints that is not."""

import pytest

from opguard_core.plan.redact import is_secret_name, redact_argv, redact_shapes, redact_text

S = "hunter2-S3cr3t"
ALNUM = "aB3" * 14
SECRETS = [
    f"['train.py', '--token', '{S}', '--lr', '3']",
    f'["train.py",\n  "-api_key",\n  "{S}"]',
    f"{{'argv': \"['--hub_password', '{S}']\"}}",
    f"Authorization: Bearer {S}",
    f"authorization: Basic {S}",
    f"-H 'Authorization: token {S}'",
    f"Bearer {S}.abc.def",
    f"Set-Cookie: session={S}; HttpOnly",
    f'{{"api_key": "{S}", "lr": 3}}',
    f"{{'hf_token': '{S} with spaces', 'lr': 3}}",
    f'{{"message": "{{\\"api_key\\": \\"{S}\\"}}"}}',
    f"api_key={S}",
    f"API-KEY: {S}",
    f"password: {S}",
    f"passwd = {S}",
    f"db.password={S}",
    f"export WANDB_API_KEY={S}",
    f"AWS_SECRET_ACCESS_KEY={S} python train.py",
    f"aws_session_token = {S}",
    f"clientSecret: '{S}'",
    f"train.py --hf-token {S} --lr 1",
    f"train.py --password {S}",
    f"train.py --api_key={S}",
    f"https://me:{S}@host/repo.git",
    f"postgresql://me:{S}@host:5432/db",
    f"https://host/x?token={S}&page=2",
    f"https://bucket/x?X-Amz-Signature={S}&X-Amz-Credential={S}",
    f"huggingface token is hf_{ALNUM} {S[:0]}",
    f"sk-proj-{ALNUM}",
    f"key sk-ant-api03-{ALNUM}",
    f"ghp_{ALNUM}",
    f"github_pat_{ALNUM}",
    f"glpat-{ALNUM}",
    "AKIAIOSFODNN7EXAMPLE",
    f"xoxb-123-{ALNUM}",
    f"AIza{ALNUM[:35]}",
    f"eyJ{ALNUM}.eyJ{ALNUM}.{ALNUM}",
    f"nvapi-{ALNUM}",
    f"https://{ALNUM}@github.com/x/y",
    f"-----BEGIN RSA PRIVATE KEY-----\n{ALNUM}\n{ALNUM}==\n-----END RSA PRIVATE KEY-----",
    f"-----BEGIN OPENSSH PRIVATE KEY-----\\n{ALNUM}\\n-----END OPENSSH PRIVATE KEY-----",
    f"{ALNUM}\n{ALNUM}==\n-----END PRIVATE KEY-----",
    f"-----BEGIN PRIVATE KEY-----\n{ALNUM}\n{ALNUM}",
]
INNOCENT = [
    "['train.py', '--token', '--lr', '3', '--pad_token', 'x']",
    "step 100/2000 | loss 2.3456 | lr 3.00e-04 | 12345 tok/sec | grad norm 1.02",
    "tokens_per_second=183422.1 tokens: 524288 num_tokens=10 total_tokens: 1,048,576",
    "{'loss': 2.31, 'grad_norm': 0.5, 'learning_rate': 5e-05, 'epoch': 0.1, 'num_input_tokens_seen': 4096}",
    "tokenizer=/data/models/llama/tokenizer.model tokenizer_config.json special_tokens_map.json",
    "pad_token: <pad> eos_token='</s>' bos_token_id=1 unk_token=[UNK] image_token=<image>",
    "use_auth_token: False token=None hf_token=None auth_token: null api_key=None password=''",
    "max_tokens=5 --max-new-tokens 128 --tokenizer gpt2 --token-dropout 0.1",
    "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "commit 3f786850e387550fdab836ed7e6dc881de23001b run run-0f343b0931126a20",
    "next token: ' the' token: hello; generated token: world",
    "author: John Smith, authors=[A, B] authenticated=yes",
    "sort key=lambda x: x, keys: ['a'], primary_key=id, key_padding_mask=None, query_key_value.weight",
    "model.layers.0.self_attn.k_proj.weight torch.Size([4096, 4096]) monkey=1",
    "NCCL INFO Channel 00/02 : 0 1 2 3 hf_model_weights_are_loaded_from_here_and_there",
    "task-specific-head-0001-of-0002-sk-learn 12:30:45 http://host:8080/metrics?step=3&page=2",
    "cookie cutter model; passed 30 tests; secretary=3; password_file",
    "Traceback (most recent call last):\n  File \"/a/b.py\", line 3, in f\n    raise KeyError(key)\nKeyError: 'token'",
    "PWD=/home/me OLDPWD=/tmp",
    "loss_per_token: 2.34 ms/token: 12.5 time per output token: 3.1ms",
]


@pytest.mark.parametrize("text", SECRETS)
def test_a_secret_leaves_a_log(text):
    shown = redact_text(text)
    assert "***" in shown
    assert not any(secret in shown for secret in (S, ALNUM[:20], "IOSFODNN7"))
    assert shown.count("\n") == text.count("\n"), "lines keep their numbers"
    assert redact_text(shown) == shown


@pytest.mark.parametrize("text", INNOCENT)
def test_what_a_training_prints_stays_as_it_is(text):
    assert redact_text(text) == text


def test_the_name_stays_and_only_the_value_goes():
    assert redact_text(f'{{"api_key": "{S}", "lr": 3}}') == '{"api_key": "***", "lr": 3}'
    assert redact_text(f"A hf_token={S}, lr=3") == "A hf_token=***, lr=3"
    assert redact_text(f"https://me:{S}@host/x") == "https://me:***@host/x"


@pytest.mark.parametrize(
    "text",
    ["token = tokens[0]", "password = getpass()", "api_key = os.environ['API_KEY']", "headers = {'Authorization': f'Bearer {token}'}"],
)
def test_source_keeps_its_names(text):
    assert redact_shapes(text) == text


def test_source_loses_what_has_the_shape_of_a_secret():
    assert redact_shapes(f"login('hf_{ALNUM}')") == "login('***')"


@pytest.mark.parametrize(
    ("argv", "shown"),
    [
        (["--token", S], ["--token", "***"]),
        (["-password", S, "x"], ["-password", "***", "x"]),
        ([f"--config={{'api_key': '{S}'}}"], ["--config={'api_key': '***'}"]),
        ([f"model.hub.token={S}"], ["model.hub.token=***"]),
        ([f"+auth.password={S}"], ["+auth.password=***"]),
        (["--token", "--next", "x"], ["--token", "--next", "x"]),
        (["--pad-token", "<pad>", "--num-tokens", "3"], ["--pad-token", "<pad>", "--num-tokens", "3"]),
        ([f"hf_{ALNUM}"], ["***"]),
    ],
)
def test_command_lines_keep_their_words(argv, shown):
    assert redact_argv(argv) == shown


@pytest.mark.parametrize(
    "name", ["hf_token", "HF_TOKEN", "hfToken", "MYTOKEN", "api-key", "apiKey", "OPENAI_API_KEY", "db_password", "x-auth", "access_key_id"]
)
def test_names_of_secrets(name):
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name", ["tokens", "tokenizer", "token_type_ids", "pad_token", "eosToken", "author", "key", "sort_key", "keyboard", "", "PWD"]
)
def test_names_of_no_secrets(name):
    assert not is_secret_name(name)


@pytest.mark.parametrize(
    "unit", ["a", "token=", "sk-", "eyJ", '"', "\\", "http://a:", "a.b-c ", "token='", "-", "bearer ", "eyJa.", "?a=", "A" * 16]
)
def test_a_long_run_of_anything_takes_no_longer_than_its_length(unit):
    """A pattern that began anew at every character would not end before the timeout of the test."""
    text = unit * (400_000 // len(unit))
    assert len(redact_text(text)) <= len(text) + 3 * text.count("token")
