"""Public networks: size, work, family, accuracy and, where it is common knowledge, how many layers of which kind.

Work is counted as networks' papers count it: one multiplication with its addition is one operation, for one input of
the usual size (images of 224 x 224, 299 for Inception, 640 for YOLOv5, what the variant asks for in EfficientNet; 384
tokens for encoders of text, 128 for the translating transformer; one token for generators). Weights are 4 bytes a
parameter, 2 for the generators of 1 billion and more. Memory per input is an estimate from the size of the activations;
accuracy is top-1 on ImageNet of the weights published with torchvision, and left out elsewhere, since figures on
different tasks do not compare.
"""

from __future__ import annotations

from solvers.domain.ids import ModelName
from solvers.domain.workload import LayerCount, ModelVariant, QualityClass

# name | family | million parameters | giga-operations per input | MiB per input | top-1 % | layers
# Layers: c convolutions, l fully connected or attention projections, n normalisations, p poolings, e embeddings.
_TABLE = """
alexnet            alexnet       61.1    0.71   8   56.52 c5l3p3
convnext_tiny      convnext      28.59   4.46  60   82.52 c22l36n23p1
convnext_small     convnext      50.22   8.68  90   83.62 c40l72n41p1
convnext_base      convnext      88.59  15.36 120   84.06 c40l72n41p1
convnext_large     convnext     197.77  34.36 180   84.41 c40l72n41p1
densenet121        densenet       7.98   2.83  60   74.43 c120l1n121p5
densenet161        densenet      28.68   7.73 110   77.14 c160l1n161p5
densenet169        densenet      14.15   3.36  75   75.6  c168l1n169p5
densenet201        densenet      20.01   4.29  95   76.9  c200l1n201p5
efficientnet_b0    efficientnet   5.29   0.39  36   77.69 c81l1n49p17
efficientnet_b1    efficientnet   7.79   0.69  55   78.64 c115l1n69p24
efficientnet_b2    efficientnet   9.11   1.09  70   80.61 c115l1n69p24
efficientnet_b3    efficientnet  12.23   1.83 100   82.01 c130l1n78p27
efficientnet_b4    efficientnet  19.34   4.39 180   83.38 c160l1n96p33
efficientnet_b5    efficientnet  30.39  10.27 330   83.44 c194l1n116p40
efficientnet_b6    efficientnet  43.04  19.07 480   84.01 c224l1n134p46
efficientnet_b7    efficientnet  66.35  37.75 800   84.12 c272l1n162p56
efficientnet_v2_s  efficientnet  21.46   8.37 130   84.23 c170l1n112p31
efficientnet_v2_m  efficientnet  54.14  24.58 290   85.11 c241l1n156p42
efficientnet_v2_l  efficientnet 118.52  56.08 520   85.81 c338l1n217p60
googlenet          inception      6.62    1.5  30   69.78 c57l1n57p14
inception_v3       inception     27.16   5.71  56   77.29 c94l1n94p14
inception_v4       inception     42.7   12.3   80    -    c149l1n149p19
mnasnet0_5         mnasnet        2.22    0.1  14   67.73 c52l1n52p1
mnasnet0_75        mnasnet        3.17   0.21  20   71.18 c52l1n52p1
mnasnet1_0         mnasnet        4.38   0.31  26   73.46 c52l1n52p1
mnasnet1_3         mnasnet        6.28   0.53  34   76.51 c52l1n52p1
mobilenet_v1       mobilenet      4.23   0.57  27   70.6  c27l1n27p1
mobilenet_v2       mobilenet      3.5     0.3  27   71.88 c52l1n52p1
mobilenet_v3_large mobilenet      5.48   0.22  22   74.04 c62l2n46p9
mobilenet_v3_small mobilenet      2.54   0.06  10   67.67 c52l2n34p10
regnet_x_400mf     regnet         5.5    0.41  22   72.83 c71l1n71p1
regnet_x_800mf     regnet         7.26    0.8  26   75.21 c53l1n53p1
regnet_x_1_6gf     regnet         9.19    1.6  38   77.04 c59l1n59p1
regnet_x_3_2gf     regnet        15.3    3.18  55   78.36 c80l1n80p1
regnet_x_8gf       regnet        39.57    8.0  75   79.34 c74l1n74p1
regnet_x_16gf      regnet        54.28  15.94 105   80.06 c71l1n71p1
regnet_x_32gf      regnet       107.81  31.74 140   80.62 c74l1n74p1
regnet_y_400mf     regnet         4.34    0.4  22   74.05 c85l1n53p17
regnet_y_800mf     regnet         6.43   0.83  27   76.42 c75l1n47p15
regnet_y_1_6gf     regnet        11.2    1.61  45   77.95 c139l1n85p28
regnet_y_3_2gf     regnet        19.44   3.18  58   78.95 c109l1n67p22
regnet_y_8gf       regnet        39.38   8.47  80   80.03 c89l1n55p18
regnet_y_16gf      regnet        83.59  15.91 110   80.42 c95l1n59p19
regnet_y_32gf      regnet       145.05  32.28 150   80.88 c105l1n65p21
regnet_y_128gf     regnet       644.81 127.52 360   86.07 c139l1n86p28
resnet18           resnet        11.69   1.81  24   69.76 c20l1n20p2
resnet34           resnet         21.8   3.66  30   73.31 c36l1n36p2
resnet50           resnet        25.56   4.09  48   76.13 c53l1n53p2
resnet101          resnet        44.55    7.8  70   77.37 c104l1n104p2
resnet152          resnet        60.19  11.51  96   78.31 c155l1n155p2
resnext50_32x4d    resnext       25.03   4.23  58   77.62 c53l1n53p2
resnext101_32x4d   resnext       44.18   7.99  84    -    c104l1n104p2
resnext101_32x8d   resnext       88.79  16.41 110   79.31 c104l1n104p2
resnext101_64x4d   resnext       83.46  15.46 110   83.25 c104l1n104p2
se-resnext101_32x4d resnext       49.0    8.03  92    -    c104l67n104p35
shufflenet_v2_x0_5 shufflenet     1.37   0.04   6   60.55 c56l1n56p1
shufflenet_v2_x1_0 shufflenet     2.28   0.14  11   69.36 c56l1n56p1
shufflenet_v2_x1_5 shufflenet      3.5    0.3  16   73.0  c56l1n56p1
shufflenet_v2_x2_0 shufflenet     7.39   0.58  22   76.23 c56l1n56p1
squeezenet1_0      squeezenet     1.25   0.82  24   58.09 c26p4
squeezenet1_1      squeezenet     1.24   0.35  14   58.18 c26p4
vgg11              vgg          132.86   7.61  36   69.02 c8l3p5
vgg11_bn           vgg          132.87   7.61  50   70.37 c8l3n8p5
vgg13              vgg          133.05  11.31  52   69.93 c10l3p5
vgg13_bn           vgg          133.05  11.31  76   71.59 c10l3n10p5
vgg16              vgg          138.36  15.47  60   71.59 c13l3p5
vgg16_bn           vgg          138.37  15.47  86   73.36 c13l3n13p5
vgg19              vgg          143.67  19.63  64   72.38 c16l3p5
vgg19_bn           vgg          143.68  19.63  94   74.22 c16l3n16p5
wide_resnet50_2    wide-resnet   68.88   11.4  64   78.47 c53l1n53p2
wide_resnet101_2   wide-resnet  126.89  22.75  95   78.85 c104l1n104p2
vit_b_16           vit           86.57  17.56  40   81.07 c1l49n25
vit_b_32           vit           88.22   4.41  18   75.91 c1l49n25
vit_l_16           vit          304.33  61.55  90   79.66 c1l97n49
vit_l_32           vit          306.54  15.38  40   76.97 c1l97n49
swin_t             swin          28.29   4.49  55   81.47 c1l49n29
swin_s             swin          49.61   8.74  80   83.2  c1l97n53
swin_b             swin          87.77  15.43 110   83.58 c1l97n53
ssd300_vgg16       ssd           35.64  34.86 110    -    c35p5
ssd-resnet50       ssd           22.9    22.0 110    -    c65n53p1
efficientdet-d0    efficientdet   3.9     2.5 120    -    -
mask-rcnn          rcnn          44.4   134.4 700    -    -
faster-rcnn        rcnn          41.76  134.4 600    -    -
yolov5n            yolov5         1.9    2.25  70    -    c60n57p3
yolov5s            yolov5         7.2    8.25 120    -    c60n57p3
yolov5m            yolov5        21.2    24.5 210    -    c82n79p3
yolov5l            yolov5        46.5   54.55 300    -    c104n101p3
yolov5x            yolov5        86.7  102.85 430    -    c126n123p3
vgg-face           vgg          145.0   15.47  60    -    c13l3p5
bert-small         bert          28.8     5.4  10    -    l25n9e3
bert-medium        bert          41.4    10.7  14    -    l49n17e3
bert-base          bert         109.5    35.4  26    -    l73n25e3
bert-large         bert         335.1   123.5  60    -    l145n49e3
bert-dist4l        bert          14.5     2.1   6    -    l25n9e3
bert-dist6l        bert          67.0    17.7  16    -    l37n13e3
distilbert         bert          66.4    17.7  16    -    l37n13e2
roberta-base       roberta      124.6    35.4  26    -    l73n25e3
roberta-large      roberta      355.4   123.5  60    -    l145n49e3
electra-base       bert         109.0    35.4  26    -    l73n25e3
transformer-mt     transformer  210.8    10.9  60    -    l97n31e2
unet               unet          31.0    54.7 600    -    c23p4
nnunet-2d          unet          41.3    71.0 700    -    -
wav2vec2-base      wav2vec2      94.4    34.0 200    -    -
gpt2               gpt2         124.4   0.124  75    -    l49n25e2
gpt2-medium        gpt2         354.8   0.355 150    -    l97n49e2
gpt2-large         gpt2         774.0   0.774 225    -    l145n73e2
gpt2-xl            gpt2        1557.6   1.558 300    -    l193n97e2
"""

# name, family, million parameters, MiB of key-value cache per token at 2 bytes; operations per token are the
# parameters that one token uses.
_GENERATORS = """
opt-1.3b        opt        1316   0.1875 1316
opt-6.7b        opt        6658   0.5    6658
opt-13b         opt       12853   0.78125 12853
opt-30b         opt       29975   1.3125 29975
gpt-j-6b        gpt-j      6051   0.4375 6051
mistral-7b      mistral    7242   0.125  7242
mixtral-8x7b    mixtral   46703   0.125  12880
llama-7b        llama      6738   0.5    6738
llama-13b       llama     13016   0.78125 13016
llama-30b       llama     32529   1.5234375 32529
llama-65b       llama     65286   2.5    65286
llama-2-7b      llama-2    6738   0.5    6738
llama-2-13b     llama-2   13016   0.78125 13016
llama-2-70b     llama-2   68977   0.3125 68977
llama-3-8b      llama-3    8030   0.125  8030
llama-3-70b     llama-3   70554   0.3125 70554
llama-3.1-8b    llama-3    8030   0.125  8030
llama-3.1-70b   llama-3   70554   0.3125 70554
llama-3.1-405b  llama-3  405853   0.4921875 405853
llama-3.2-1b    llama-3    1236   0.03125 1236
llama-3.2-3b    llama-3    3213   0.109375 3213
qwen2.5-7b      qwen2.5    7616   0.0546875 7616
qwen2.5-14b     qwen2.5   14770   0.1875 14770
qwen2.5-32b     qwen2.5   32764   0.25   32764
qwen2.5-72b     qwen2.5   72706   0.3125 72706
qwen3-8b        qwen3      8191   0.140625 8191
qwen3-32b       qwen3     32762   0.25   32762
gemma-2-9b      gemma-2    9241   0.328125 9241
gemma-2-27b     gemma-2   27227   0.359375 27227
bloom-176b      bloom    176247   3.828125 176247
"""
_KINDS = {"c": "conv", "l": "linear", "n": "norm", "p": "pool", "e": "embedding"}
_MIB_PER_MILLION_4_BYTES = 4e6 / 2**20
LOW_QUALITY_BELOW = 0.5
"""A variant with less than this part of its family's most parameters is of class `low`."""


def _layers(text: str) -> tuple[LayerCount, ...]:
    counts: list[LayerCount] = []
    digits = ""
    for letter in reversed(text.replace("-", "")):
        if letter.isdigit():
            digits = letter + digits
        else:
            counts.append(LayerCount(kind=_KINDS[letter], count=int(digits)))
            digits = ""
    return tuple(reversed(counts))


def _launch_s(weights_mib: float) -> float:
    return round(4.0 + weights_mib / 150.0, 1)


def models() -> tuple[ModelVariant, ...]:
    """Every network of the tables in rising order of its name."""
    rows = [line.split() for line in _TABLE.strip().splitlines()]
    generators = [line.split() for line in _GENERATORS.strip().splitlines()]
    largest: dict[str, float] = {}
    for row in (*rows, *generators):
        largest[row[1]] = max(largest.get(row[1], 0.0), float(row[2]))

    def quality(row: list[str]) -> QualityClass:
        small = float(row[2]) < LOW_QUALITY_BELOW * largest[row[1]]
        return QualityClass.LOW if small else QualityClass.HIGH

    found = [
        ModelVariant(
            name=ModelName(row[0]),
            family=row[1],
            parameters_million=float(row[2]),
            memory_mib_weights=round(float(row[2]) * _MIB_PER_MILLION_4_BYTES, 1),
            memory_mib_per_input=float(row[4]),
            gflop_per_input=float(row[3]),
            quality_class=quality(row),
            accuracy_pct=None if row[5] == "-" else float(row[5]),
            layers=_layers(row[6]),
            launch_s=_launch_s(float(row[2]) * _MIB_PER_MILLION_4_BYTES),
        )
        for row in rows
    ] + [
        ModelVariant(
            name=ModelName(row[0]),
            family=row[1],
            parameters_million=float(row[2]),
            memory_mib_weights=round(float(row[2]) * _MIB_PER_MILLION_4_BYTES / 2, 1),
            gflop_per_input=float(row[4]) / 1000,
            quality_class=quality(row),
            launch_s=_launch_s(float(row[2]) * _MIB_PER_MILLION_4_BYTES / 2),
            kv_cache_mib_per_token=float(row[3]),
        )
        for row in generators
    ]
    return tuple(sorted(found, key=lambda model: model.name))
