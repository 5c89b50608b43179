"""Builds the tiny Qwen3 model that has memorised the dialogues below; `tiny/` beside this file is what it made.

usage: python build_tiny.py OUT_DIR   (about 3 minutes of CPU, in the environment that setup.sh makes)

Its answers depend on what reached its prompt: which word it says tells whether the reasoning of the turn before was
replayed. That is what makes it an oracle for continuity.
"""

import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

Message = dict[str, Any]

TEMPLATE = (Path(__file__).parent / "tiny" / "chat_template.jinja").read_text()
SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MARKERS = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
ONLY_HISTORY = "ctx"  # its name is part of the corpus: another one would make another tokenizer
NOT_TRAINED_ON = -100
STEPS_MAX = 1500
LOSS_ENOUGH = 5e-4


def function_tool(name: str, argument: str) -> dict[str, Any]:
    schema = {"type": "object", "properties": {argument: {"type": "string"}}, "required": [argument]}
    return {"type": "function", "function": {"name": name, "parameters": schema}}


def system(text: str) -> Message:
    return {"role": "system", "content": text}


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def tool(output: str) -> Message:
    return {"role": "tool", "content": output, "tool_call_id": "c"}


def assistant(
    text: str | None, reasoning: str | None = None, calls: list[tuple[str, str]] | None = None, *, told: bool = False
) -> Message:
    """A turn to learn; `told` is one that is only history, so that no prompt ever has two answers."""
    message: Message = {"role": "assistant", "content": text}
    if told:
        message[ONLY_HISTORY] = True
    if reasoning:
        message["reasoning"] = reasoning
    if calls:
        message["tool_calls"] = [
            {"type": "function", "id": "c", "function": {"name": name, "arguments": arguments}}
            for name, arguments in calls
        ]
    return message


WEATHER = [function_tool("get_weather", "city")]
WEATHER_AND_TIME = [*WEATHER, function_tool("get_time", "zone")]
PARIS = ("get_weather", '{"city": "Paris"}')
UTC = ("get_time", '{"zone": "UTC"}')
SECRET = user("Think of a secret word.")
WHICH = user("Which word?")
SUNNY = assistant("It is sunny in Paris.", "The tool said sunny.")
ASK_WEATHER = assistant(None, "I need the weather tool.", [PARIS])

DIALOGUES: list[tuple[list[dict[str, Any]] | None, list[Message]]] = [
    (None, [user("Say hello."), assistant("Hello, world!"), user("Again."), assistant("Hello again, world!")]),
    (
        None,
        [
            user("What is 2+2?"),
            assistant("The answer is 4.", "Two plus two is four."),
            user("Double it."),
            assistant("The answer is 8.", "Four times two is eight."),
            user("Double it."),
            assistant("The answer is 16.", "Eight times two is sixteen."),
        ],
    ),
    (
        None,
        [
            SECRET,
            assistant("I have one.", "The secret word is ZEBRA."),
            WHICH,
            assistant("It was ZEBRA.", "I said ZEBRA before."),
        ],
    ),
    (
        None,
        [
            SECRET,
            assistant("I have one.", "The secret word is MANGO.", told=True),
            WHICH,
            assistant("It was MANGO.", "I said MANGO before."),
        ],
    ),
    (None, [SECRET, assistant("I have one.", told=True), WHICH, assistant("I do not know.", "I see no word.")]),
    (
        WEATHER,
        [
            user("Weather in Paris?"),
            ASK_WEATHER,
            tool("sunny"),
            SUNNY,
            user("Thanks."),
            assistant("You are welcome."),
        ],
    ),
    (WEATHER, [user("Weather in Paris?"), assistant(None, None, [PARIS], told=True), tool("sunny"), SUNNY]),
    (
        WEATHER,
        [
            user("Weather in Paris?"),
            ASK_WEATHER,
            tool("rain"),
            assistant("It is raining in Paris.", "The tool said rain."),
        ],
    ),
    (
        WEATHER_AND_TIME,
        [
            user("Weather and time?"),
            assistant("Let me check.", "I need both tools.", [PARIS, UTC]),
            tool("sunny"),
            tool("12:00"),
            assistant("Sunny, and it is 12:00.", "Both tools answered."),
        ],
    ),
    (WEATHER_AND_TIME, [user("Weather in Paris?"), ASK_WEATHER, tool("sunny"), SUNNY]),
    (None, [system("Be brief."), user("Say hello."), assistant("Hi.")]),
    (None, [system("Be brief."), user("What is 2+2?"), assistant("4.", "Two plus two is four.")]),
    (None, [user("Count."), assistant("one two three four five six seven eight nine ten eleven twelve")]),
    (
        None,
        [
            user("Count slowly."),
            assistant("one two three", "I will count one two three four five six seven eight nine ten slowly."),
        ],
    ),
    (None, [user("Only think."), assistant(None, "I only think and say nothing.")]),
    (None, [user("Emoji."), assistant("Café 🦓 naïve — 日本語 ok.", "Unicode: é 🦓.")]),
    (None, [user("Give JSON."), assistant('{"answer": 4}', "Return the JSON object.")]),
]


class Sample(NamedTuple):
    """One assistant turn: the prompt exactly as a server will render it, and the text to answer with."""

    prompt: str
    answer: str
    prompt_tokens: list[int]
    answer_tokens: list[int]


def make_tokenizer(folder: Path) -> Any:
    messages = [message for _, dialogue in DIALOGUES for message in dialogue]
    corpus = [json.dumps(dialogue, ensure_ascii=False) for dialogue in DIALOGUES]
    corpus += [message["content"] or "" for message in messages] + [
        message.get("reasoning") or "" for message in messages
    ]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=SPECIAL_TOKENS, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator(corpus, trainer)
    tokenizer.add_tokens([AddedToken(marker, special=False, normalized=False) for marker in MARKERS])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        model_max_length=2048,
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)
    return AutoTokenizer.from_pretrained(folder)


def make_samples(tokenizer: Any) -> list[Sample]:
    samples: list[Sample] = []
    for tools, dialogue in DIALOGUES:
        for position, message in enumerate(dialogue):
            if message["role"] != "assistant" or message.get(ONLY_HISTORY):
                continue
            before, after = dialogue[:position], dialogue[: position + 1]
            prompt = tokenizer.apply_chat_template(before, tools=tools, add_generation_prompt=True, tokenize=False)
            whole = tokenizer.apply_chat_template(after, tools=tools, tokenize=False)
            assert whole.startswith(prompt), (prompt, whole)
            answer = whole.removeprefix(prompt).removesuffix("\n")
            prompts = [prompt]
            if not message.get("reasoning"):  # a plain turn is also learnt with thinking switched off
                prompts.append(
                    tokenizer.apply_chat_template(
                        before, tools=tools, add_generation_prompt=True, tokenize=False, enable_thinking=False
                    )
                )
            samples += [Sample(text, answer, tokens(tokenizer, text), tokens(tokenizer, answer)) for text in prompts]
    return samples


def tokens(tokenizer: Any, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False).input_ids


def make_model(tokenizer: Any) -> Any:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=((len(tokenizer) + 63) // 64) * 64,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.convert_tokens_to_ids("<|im_end|>"),
        pad_token_id=0,
        bos_token_id=None,
        rope_theta=10000.0,
        dtype="float32",
    )
    return Qwen3ForCausalLM(config)


def train(model: Any, samples: list[Sample]) -> None:
    """Learn the answers by heart: the loss counts their tokens only, never those of the prompt."""
    length = max(len(sample.prompt_tokens) + len(sample.answer_tokens) for sample in samples)
    inputs = torch.zeros(len(samples), length, dtype=torch.long)
    attention = torch.zeros(len(samples), length, dtype=torch.long)
    labels = torch.full((len(samples), length), NOT_TRAINED_ON)
    for row, sample in enumerate(samples):
        both = torch.tensor(sample.prompt_tokens + sample.answer_tokens)
        inputs[row, : len(both)] = both
        attention[row, : len(both)] = 1
        labels[row, len(sample.prompt_tokens) : len(both)] = torch.tensor(sample.answer_tokens)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0)
    model.train()
    for step in range(STEPS_MAX):
        for group in optimizer.param_groups:
            group["lr"] = 3e-3 * min(1, (step + 1) / 50) * (0.1 if step > 500 else 1)
        loss = model(input_ids=inputs, attention_mask=attention, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 25 == 0:
            print(step, round(loss.item(), 5), flush=True)
            if loss.item() < LOSS_ENOUGH:
                break
    model.eval()


def wrong_answers(model: Any, tokenizer: Any, samples: list[Sample]) -> list[tuple[str, str, str]]:
    """Prompt, answer and expected answer of every sample that the model does not know by heart."""
    wrong = []
    for sample in samples:
        with torch.no_grad():
            generated = model.generate(
                torch.tensor([sample.prompt_tokens]),
                max_new_tokens=len(sample.answer_tokens) + 8,
                do_sample=False,
                eos_token_id=model.config.eos_token_id,
                pad_token_id=0,
            )
        answer = tokenizer.decode(generated[0, len(sample.prompt_tokens) :])
        if answer != sample.answer:
            wrong.append((sample.prompt, answer, sample.answer))
    return wrong


def main() -> int:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = make_tokenizer(folder)
    samples = make_samples(tokenizer)
    model = make_model(tokenizer)
    train(model, samples)
    wrong = wrong_answers(model, tokenizer, samples)
    print(f"{len(samples) - len(wrong)} of {len(samples)} answers are exact", *wrong, sep="\n")
    model.save_pretrained(folder, safe_serialization=True)
    generation = {"do_sample": False, "temperature": 0.0, "eos_token_id": model.config.eos_token_id, "pad_token_id": 0}
    (folder / "generation_config.json").write_text(json.dumps(generation))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
