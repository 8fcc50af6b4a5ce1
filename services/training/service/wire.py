"""Translate between the SDK's messages and records: data of a loss in, log-probabilities out.

The SDK's own module defines the messages, so the extra `training-service` pins its version.
"""

import importlib.util
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import numpy as np

from contracts.errors import InputError
from learner.training_service.data import Datum

INSTALL = "pip install 'whetstone[training-service]'"
MOST_BYTES = 256 * 2**20  # limit of an unpacked message
OUTPUT = "TorchLossReturn"


def messages() -> Any:
    """Return the SDK's module of messages.

    Raises:
        InputError: the SDK is not installed.
    """
    if importlib.util.find_spec("tinker") is None:
        raise InputError(f"a training service needs tinker, which is not installed: {INSTALL}")
    from tinker.proto import tinker_public_pb2

    return tinker_public_pb2


def unpacked(body: bytes, encoding: str) -> bytes:
    """Return a body without its compression.

    Raises:
        InputError: the body is not zstd, or too large.
    """
    if not encoding:
        return body
    if encoding != "zstd":
        raise InputError(f"Content-Encoding: {encoding}; expected zstd or none")
    import zstandard

    try:
        with zstandard.ZstdDecompressor().stream_reader(body) as reader:
            plain: bytes = reader.read(MOST_BYTES + 1)
    except zstandard.ZstdError as error:
        raise InputError(f"the body is not zstd, as its header says: {error}") from None
    if len(plain) > MOST_BYTES:
        raise InputError(f"the body has more than {MOST_BYTES} bytes unpacked: send fewer data in a call")
    return plain


def read_request(body: bytes) -> Any:
    """Return the message of a forward_backward call.

    Raises:
        InputError: the body is not such a message.
    """
    from google.protobuf.message import DecodeError

    try:
        return messages().ForwardBackwardRequest.FromString(body)
    except DecodeError as error:
        raise InputError(f"the body is not a ForwardBackwardRequest: {error}") from None


def loss_options(request: Any) -> dict[str, object]:
    """Return the loss's options, from the newer map if it has any."""
    newer = {
        name: value.text if value.WhichOneof("value") == "text" else value.number
        for name, value in request.loss_fn_config_v2.items()
    }
    return newer or dict(request.loss_fn_config)


def data_of(request: Any) -> list[Datum]:
    """Return the data of a forward_backward call.

    Raises:
        InputError: a datum has images or sounds, an unknown number format, or numbers that don't fit its
            shape.
    """
    data = []
    for place, datum in enumerate(request.data):
        where, inputs = f"datum {place}", dict[str, np.ndarray]()
        try:
            tokens = _tokens(where, datum.model_input)
            for name, tensor in datum.loss_fn_inputs.items():
                where = f"datum {place}: {name}"
                inputs[name] = _array(where, tensor)
        except (ValueError, IndexError) as error:  # from numpy, for example if bytes are cut
            raise InputError(f"{where}: {error}") from None
        data.append(Datum(tokens, inputs))
    return data


def _tokens(where: str, chunks: Any) -> np.ndarray:
    parts = []
    for chunk in chunks:
        if not chunk.HasField("encoded_text"):
            raise InputError(
                f"{where}: model_input has more than tokens; images and sounds are not read here"
            )
        parts.append(np.frombuffer(chunk.encoded_text.tokens, np.int32))
    return np.concatenate(parts).astype(np.int64) if parts else np.zeros(0, np.int64)


def _array(where: str, tensor: Any) -> np.ndarray:
    formats = {messages().DTYPE_FLOAT32: np.float32, messages().DTYPE_INT64: np.int64}
    formats[messages().DTYPE_INT32] = np.int32
    if tensor.dtype not in formats:
        raise InputError(f"{where}: number format {tensor.dtype}; expected float32, int32 or int64")
    kind, shape = formats[tensor.dtype], tuple(tensor.shape)
    if not tensor.HasField("sparse_csr"):
        values = np.frombuffer(tensor.dense, kind)
        if shape and np.prod(shape) != values.size:
            raise InputError(f"{where}: {values.size} numbers do not have the shape {shape}")
        return values.reshape(shape or -1)
    rows = np.frombuffer(tensor.sparse_csr.crow_indices, np.int64)
    columns = np.frombuffer(tensor.sparse_csr.col_indices, np.int64)
    if len(shape) != 2 or len(rows) != shape[0] + 1 or (len(columns) and columns.min() < 0):
        raise InputError(f"{where}: a sparse tensor of shape {shape}; expected two dimensions and their rows")
    if shape[0] * shape[1] * np.dtype(kind).itemsize > MOST_BYTES:
        raise InputError(f"{where}: a tensor of shape {shape}; expected {MOST_BYTES} bytes at most")
    dense = np.zeros(shape, kind)
    dense[np.repeat(np.arange(shape[0]), np.diff(rows)), columns] = np.frombuffer(
        tensor.sparse_csr.values, kind
    )
    return dense


def loss_output(data: Sequence[np.ndarray], total: float) -> bytes:
    """Return the message of a pass: log-probabilities of each datum, and the summed loss."""
    message = messages().ForwardBackwardOutput(loss_fn_output_type=OUTPUT)
    message.metrics["loss:sum"] = total
    for width, group in groupby(data, key=lambda logprobs: logprobs.shape[1:]):
        alike = [np.ascontiguousarray(logprobs, np.float32) for logprobs in group]
        record = message.loss_fn_outputs.add(num_datums=len(alike))
        batched = record.fields["logprobs"]
        batched.data = b"".join(logprobs.tobytes() for logprobs in alike)
        batched.offsets = np.cumsum([0, *(logprobs.nbytes for logprobs in alike)]).astype(np.int64).tobytes()
        batched.dtype = messages().DTYPE_FLOAT32
        batched.trailing_shape.extend(width)
    packed: bytes = message.SerializeToString()
    return packed


def sample_output(sequences: Sequence[Any], prompt_logprobs: Sequence[float] | None) -> bytes:
    """Return the message of sampled texts, from objects with `tokens`, `logprobs` and `stopped`."""
    pb = messages()
    message = pb.SampleResponse()
    for sequence in sequences:
        message.sequences.add(
            stop_reason=pb.STOP_REASON_STOP if sequence.stopped else pb.STOP_REASON_LENGTH,
            tokens=np.asarray(sequence.tokens, np.int32).tobytes(),
            logprobs=np.asarray(sequence.logprobs, np.float32).tobytes(),
        )
    if prompt_logprobs is not None:
        message.prompt_logprobs = np.asarray([np.nan, *prompt_logprobs], np.float32).tobytes()
    packed: bytes = message.SerializeToString()
    return packed
