// The data of the page, as live.py and recorded.py write it.

export interface PageData {
  runs: Run[];
}

export type Run = LiveRun | RecordedRun;

/** A recurrent translator that the page runs itself. */
export interface LiveRun {
  name: string;
  summary: string;
  shape: Shape;
  source: Language;
  target: Language;
  max_length: number;
  beam_size: number;
  length_penalty: number;
  /** tokens of the longest sentence in training, where it is known. */
  longest: number | null;
  layout: ArrayLayout[];
  /** of the checkpoint that the run translates with. */
  step: number;
  checkpoints: Checkpoint[];
  examples: Example[];
  sentences?: undefined;
}

/** A translator whose attention was recorded. */
export interface RecordedRun {
  name: string;
  summary: string;
  /** why the page cannot run it. */
  why: string;
  sentences: Sentence[];
  checkpoints?: undefined;
  examples?: undefined;
}

export interface Shape {
  num_layers: number;
  num_decoder_layers: number;
  residual: boolean;
  layer_norm: boolean;
  attention: Attention | "none";
  attend_order: "before" | "after";
  input_feeding: boolean;
  tied_embeddings: boolean;
}

export type Attention = "additive" | "dot_product" | "scaled_dot_product" | "cosine" | "bilinear";

export type Language = WordLanguage | CharacterLanguage;

interface Vocabulary {
  lowercase: boolean;
  words: string[];
  /** The ids of the words, once they are needed. */
  ids?: Map<string, number>;
}

export interface WordLanguage extends Vocabulary {
  unit: "word";
  joins: "text" | "elisions";
  /** of a token; `{name}` stands for a class of characters. */
  pattern: string;
  classes: Record<string, string>;
  /** The pattern as an expression, once it is needed. */
  expression?: RegExp;
}

export interface CharacterLanguage extends Vocabulary {
  unit: "character";
  joins: "characters";
}

export interface ArrayLayout {
  name: string;
  shape: number[];
}

export interface Checkpoint {
  step: number;
  /** all arrays, in the order of the layout, as text. */
  arrays: string;
}

/** A target position and a source position. */
export type Cell = [number, number];

export interface Example {
  split: string;
  source: string;
  target: string;
  /** the true alignment, where it is known. */
  links: Cell[] | null;
}

/** A sentence along which attention was recorded. */
export interface Sentence {
  source_text: string;
  target_text: string;
  rows: string[];
  columns: string[];
  links: Cell[] | null;
  sides: Partial<Record<Side, PackedWeights>>;
}

export type Side = "decoder" | "encoder";

/** [layers, heads, targets, sources]. */
export type WeightsShape = [number, number, number, number];

export interface PackedWeights {
  shape: WeightsShape;
  weights: string;
  low: number;
  high: number;
}
