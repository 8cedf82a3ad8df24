//! Who and what a life is about: people and places, each with a name of its own. First names, surnames and the parts
//! of places' names repeat, as they do in life; no full name does.

use std::collections::HashSet;

use super::rng::SeededRng;

/// Somebody or something that facts are told of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Subject {
    /// The full name.
    pub(crate) name: String,
    /// What stands for the name in the next sentence; none for a place.
    pub(crate) pronoun: Option<&'static str>,
}

impl Subject {
    /// What is said instead of the name when it has just been said.
    pub(crate) fn short_reference(&self, dice: &mut SeededRng) -> &str {
        let first = self.name.split(' ').next().unwrap_or_default();
        self.pronoun.filter(|_| dice.chance(50)).unwrap_or(first)
    }
}

/// Draws subjects, none of them twice.
#[derive(Debug, Default)]
pub(crate) struct NameGenerator(HashSet<String>);

impl NameGenerator {
    /// Somebody who was not there before.
    pub(crate) fn person(&mut self, dice: &mut SeededRng) -> Subject {
        let (first_names, pronoun) = if dice.chance(50) { (FEMALE_NAMES, "She") } else { (MALE_NAMES, "He") };
        let name = self.unique_name(dice, |dice| {
            format!("{} {}", dice.pick_from_list(first_names), dice.pick_from_list(SURNAMES))
        });
        Subject { name, pronoun: Some(pronoun) }
    }

    /// A place to eat or to stay that was not there before.
    pub(crate) fn place(&mut self, dice: &mut SeededRng) -> Subject {
        let name = self.unique_name(dice, |dice| {
            format!("{} {}", dice.pick_from_list(PLACE_TYPES), dice.pick_from_list(PLACE_NAMES))
        });
        Subject { name, pronoun: None }
    }

    fn unique_name(
        &mut self,
        dice: &mut SeededRng,
        mut draw: impl FnMut(&mut SeededRng) -> String,
    ) -> String {
        let mut name = draw(dice);
        // Where all are taken, which no size of a corpus comes near, a number tells them apart.
        let mut tries = 0;
        while !self.0.insert(name.clone()) {
            tries += 1;
            name = if tries < 1_000 { draw(dice) } else { format!("{} {tries}", draw(dice)) };
        }
        name
    }
}

const FEMALE_NAMES: &str = "Mara, Ines, Tilda, Noor, Aiko, Greta, Paloma, Zofia, Leila, Briar, Hanna, Odile, Saskia, Wanda, \
    Yara, Carmen, Dagny, Elif, Fiona, Gwen, Helga, Imani, Jolene, Katya, Lucia, Mina, Nadia, Olga, \
    Priya, Quinn, Rosa, Selma, Tamar, Ulla, Vera, Willa, Ximena, Yvonne, Zelda, Anouk, Bianca, \
    Celeste, Delia, Esther, Freya, Giulia, Hedda, Irina, Judith, Keiko, Linnea, Magda, Nerys, \
    Oksana, Petra, Ramona, Sunniva, Thea, Ursula, Vivian, Winona, Agnes, Beatriz, Clara, Dunja, \
    Elodie, Fatima, Ghislaine, Henrike, Isolde, Jasmin, Kirsten, Lorena, Maeve, Nanami, Orla, Pilar, \
    Roswitha";
const MALE_NAMES: &str = "Jonas, Tomas, Idris, Bram, Kenji, Rafael, Otto, Dmitri, Farid, Gustav, Henrik, Ivo, Jamal, \
    Klaus, Luca, Matteo, Nils, Omar, Pavel, Quentin, Ruben, Stefan, Tariq, Ulrich, Viktor, Wendel, \
    Xavier, Yusuf, Zoltan, Anton, Boris, Cedric, Dario, Emil, Felipe, Goran, Hugo, Ismael, Joachim, \
    Kasper, Leon, Milan, Nestor, Oskar, Piotr, Ragnar, Sandor, Thibault, Umberto, Valentin, Walter, \
    Arvid, Benedikt, Caspian, Declan, Enzo, Florian, Gideon, Hamza, Isidor, Jerome, Kofi, Lorenzo, \
    Magnus, Nikolai, Osvaldo, Percival, Rashid, Silvio, Tobias, Urban, Vincent, Wolfram, Yannick, \
    Zachary, Alistair";
const SURNAMES: &str = "Lindqvist, Okafor, Marchetti, Novak, Haddad, Tanaka, Bergmann, Castellanos, Dubois, Eriksen, \
    Fontaine, Grabowski, Hollander, Ivanova, Jansen, Kowalczyk, Lombardi, Moreau, Nakamura, Olsen, \
    Petrov, Quiroga, Rossi, Schreiber, Takahashi, Ullmann, Vasquez, Wexler, Yamamoto, Zimmer, \
    Abernathy, Brandt, Calloway, Dragomir, Eastwick, Farrow, Giordano, Hathaway, Ibarra, Jakobsen, \
    Keller, Lachance, Mbeki, Nyström, Oduya, Papadakis, Quist, Renner, Sokolov, Thornbury, \
    Underhill, Vandermeer, Whitlock, Xenakis, Yilmaz, Zapata, Aalto, Bianchi, Cordero, Devereux, \
    Engel, Ferreira, Gallagher, Hoffmann, Inoue, Jovanovic, Kapoor, Laurent, Mendoza, Nakata, \
    Ortega, Pellegrini, Rasmussen, Santoro, Teixeira, Uribe, Villanueva, Winterbourne, Yardley, \
    Zielinski, Ashdown, Bellweather, Carmichael, Dahlgren, Espinoza, Fairbanks, Gutierrez, \
    Halvorsen, Iversen, Juarez, Kristensen, Lefebvre, Macallister, Nordstrom, Oyelaran, Pritchard, \
    Rutherford, Stavros, Trevelyan, Voss";
const PLACE_TYPES: &str =
    "Café, Hotel, Trattoria, Brasserie, Pension, Bistro, Taverna, Osteria, Auberge, Gasthaus";
const PLACE_NAMES: &str = "Lumen, Brisa, Solana, Kestrel, Marisol, Aurora, Belvedere, Corvina, Delfino, Esmeralda, \
    Fiorella, Girasole, Horizonte, Isabella, Jacaranda, Karavel, Lavanda, Mirador, Nocturne, \
    Oleander, Paradiso, Quetzal, Rivoli, Saffrano, Tramonto, Umbria, Valencia, Wisteria, Xanadu, \
    Yggdrasil, Zephyr, Amaranta, Bellaria, Cipresso, Donatella, Estrella, Fenice, Gloriosa, \
    Hesperia, Imperiale, Juniper, Kalliope, Lorelei, Montebello, Nautilus, Orfeo, Pergola, \
    Rosmarino, Serafina, Tivoli";
