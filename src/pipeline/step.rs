//! Typed steps composed by tower layers, without a box.
//!
//! `tower::Layer` and `ServiceBuilder` compose the steps; the composed value is a [`Stage`], whose
//! future is neither named nor boxed. Each step takes what the step before it earned and hands on
//! what it earns itself, so steps that are swapped, dropped or doubled do not compile. A step uses the
//! rest of the way at most once: [`Next::run`] consumes it. There is no readiness inside: back-pressure
//! lives in the in-flight limit alone.

use std::future::Future;

use tower::Layer;

/// One stage of a call's life: takes what the stage before earned, answers for the whole call.
pub trait Stage<In>: Clone + Send + Sync + 'static {
    /// What it answers.
    type Answer: Send;

    /// Answers for the call.
    ///
    /// Cancel safety: dropping the future abandons the call, unless `record` has spawned its task.
    fn run(&self, input: In) -> impl Future<Output = Self::Answer> + Send;
}

/// A step: an input, what it earns, and how it uses the rest of the way.
pub trait Step: Clone + Send + Sync + 'static {
    /// What the step before earned.
    type In: Send;
    /// What this step earns.
    type Out: Send;
    /// What the rest of the way answers.
    type Below: Send;
    /// What this step answers.
    type Answer: Send;

    /// Takes the step.
    fn step<N: Stage<Self::Out, Answer = Self::Below>>(
        &self,
        input: Self::In,
        next: Next<'_, N>,
    ) -> impl Future<Output = Self::Answer> + Send;
}

/// The rest of the way, usable once.
#[derive(Debug)]
pub struct Next<'a, N>(&'a N);

impl<N: Clone> Next<'_, N> {
    /// Goes on.
    pub async fn run<T>(self, input: T) -> N::Answer
    where
        N: Stage<T>,
    {
        self.0.run(input).await
    }

    /// The owned form, for a task that nobody cancels. Clones handles only.
    pub fn detach(self) -> Detached<N> {
        Detached(self.0.clone())
    }
}

/// See [`Next::detach`].
#[derive(Debug)]
pub struct Detached<N>(N);

impl<N> Detached<N> {
    /// Goes on.
    pub async fn run<T>(self, input: T) -> N::Answer
    where
        N: Stage<T>,
    {
        self.0.run(input).await
    }
}

/// Makes a layer of a step.
pub fn step<S: Step>(step: S) -> StepLayer<S> {
    StepLayer(step)
}

/// See [`step`].
#[derive(Clone, Debug)]
pub struct StepLayer<S>(S);

impl<S: Clone, N> Layer<N> for StepLayer<S> {
    type Service = Stepped<S, N>;

    fn layer(&self, next: N) -> Stepped<S, N> {
        Stepped { step: self.0.clone(), next }
    }
}

/// A step before the rest of the way.
#[derive(Clone, Debug)]
pub struct Stepped<S, N> {
    step: S,
    next: N,
}

impl<S: Step, N: Stage<S::Out, Answer = S::Below>> Stage<S::In> for Stepped<S, N> {
    type Answer = S::Answer;

    fn run(&self, input: S::In) -> impl Future<Output = S::Answer> + Send {
        self.step.step(input, Next(&self.next))
    }
}
